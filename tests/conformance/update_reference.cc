// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/update_reference.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace terrace::kernels::conformance {
namespace {

double SignOf(double value) { return value > 0 ? 1 : value < 0 ? -1 : 0; }

}  // namespace

// As optimizer_rule.h writes the rules.
void UpdateRef(const UpdateAttrs& attrs, std::span<Values> operands) {
  const double lr = operands[5][0] * attrs.lr_scale, decay = attrs.weight_decay;
  const double beta1 = attrs.beta1, beta2 = attrs.beta2;
  for (size_t i = 0; i < operands[0].size(); ++i) {
    double& w = operands[1][i];
    double g = operands[0][i] * operands[4][0];
    const bool penalises =
        attrs.rule != OptimizerRule::kAdamw && attrs.rule != OptimizerRule::kLion;
    if (penalises) g += decay * w;
    if (!penalises) w -= lr * decay * w;
    if (attrs.rule == OptimizerRule::kSgd) {
      w -= lr * g;
      continue;
    }
    double& m = operands[2][i];
    if (attrs.rule == OptimizerRule::kAdamw || attrs.rule == OptimizerRule::kAdam) {
      double& v = operands[3][i];
      m = beta1 * m + (1 - beta1) * g;
      v = beta2 * v + (1 - beta2) * g * g;
      const double denominator = std::sqrt(v) / std::sqrt(operands[5][2]) + attrs.epsilon;
      w -= lr / operands[5][1] * m / denominator;
    } else if (attrs.rule == OptimizerRule::kLion) {
      w -= lr * SignOf(beta1 * m + (1 - beta1) * g);
      m = beta2 * m + (1 - beta2) * g;
    } else {
      m = beta1 * m + g;
      w -= lr * (attrs.rule == OptimizerRule::kNesterov ? g + beta1 * m : m);
    }
  }
}

namespace {

// The numbers of int8 codes: of each decade below 1 the middles of equal intervals, twice as many
// as of the decade below it, both signs or one; 0 and 1.
Values DynamicNumbers(bool both_signs) {
  Values numbers = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int intervals = both_signs ? 1 << decade : 2 << decade;
    for (int i = 0; i < intervals; ++i) {
      const double middle = (0.1 + 0.9 * (i + 0.5) / intervals) * std::pow(10.0, decade - 6);
      numbers.push_back(middle);
      if (both_signs) numbers.push_back(-middle);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

int64_t NearestCode(const Values& numbers, double value) {
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), value);
  if (above == numbers.begin()) return 0;
  if (above == numbers.end()) return static_cast<int64_t>(numbers.size()) - 1;
  const bool nearer = *above - value < value - *std::prev(above);
  return above - numbers.begin() - (nearer ? 0 : 1);
}

}  // namespace

void UpdateInt8Ref(const UpdateAttrs& attrs, std::span<Values> operands) {
  const Values numbers[2] = {DynamicNumbers(true), DynamicNumbers(false)};
  for (int moment = 0; moment < RowOf(attrs.rule).moments; ++moment) {
    Values& codes = operands[2 + moment];
    for (size_t i = 0; i < codes.size(); ++i)
      codes[i] =
          numbers[moment][static_cast<int64_t>(codes[i])] * operands[6 + moment][i / attrs.block];
  }
  UpdateRef(attrs, operands);
  for (int moment = 0; moment < RowOf(attrs.rule).moments; ++moment) {
    Values& values = operands[2 + moment];
    Values& scales = operands[6 + moment];
    std::fill(scales.begin(), scales.end(), 0.0);
    for (size_t i = 0; i < values.size(); ++i)
      scales[i / attrs.block] = std::max(scales[i / attrs.block], std::abs(values[i]));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          static_cast<double>(NearestCode(numbers[moment], values[i] / scales[i / attrs.block]));
    }
  }
}

namespace {

// c = a b of row-major matrices [m,k] and [k,n], or a b' of [n,k].
Values Product(const Values& a, const Values& b, int64_t m, int64_t n, int64_t k,
               bool transpose_b) {
  Values c(m * n, 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j)
        c[i * n + j] += a[i * k + l] * (transpose_b ? b[j * k + l] : b[l * n + j]);
    }
  }
  return c;
}

// X of optimizer_rule.h, always from the left.
Values Orthogonal(Values x, int64_t rows, int64_t columns, int64_t iterations) {
  const auto [a, b, c] = kNewtonSchulz;
  for (int64_t i = 0; i < iterations; ++i) {
    const Values gram = Product(x, x, rows, rows, columns, /*transpose_b=*/true);
    Values polynomial = Product(gram, gram, rows, rows, rows, /*transpose_b=*/false);
    for (size_t j = 0; j < polynomial.size(); ++j) polynomial[j] = b * gram[j] + c * polynomial[j];
    Values next = Product(polynomial, x, rows, columns, rows, /*transpose_b=*/false);
    for (size_t j = 0; j < next.size(); ++j) next[j] += a * x[j];
    x = std::move(next);
  }
  return x;
}

}  // namespace

void UpdateMatrixRef(const UpdateAttrs& attrs, std::span<const TensorShape> shapes,
                     std::span<Values> operands) {
  const int64_t rows = shapes[0].size[0], columns = shapes[0].size[1];
  const double lr = operands[5][0] * attrs.lr_scale, beta = attrs.beta1;
  Values u(operands[0].size());
  double squares = 0;
  for (size_t i = 0; i < u.size(); ++i) {
    const double g = operands[0][i] * operands[4][0];
    double& m = operands[2][i];
    m = beta * m + (1 - beta) * g;
    u[i] = beta * m + (1 - beta) * g;
    squares += u[i] * u[i];
  }
  for (double& value : u) value /= std::max(std::sqrt(squares), double{attrs.epsilon});
  const Values o = Orthogonal(std::move(u), rows, columns, attrs.iterations);
  for (size_t i = 0; i < o.size(); ++i) {
    operands[1][i] -= lr * attrs.weight_decay * operands[1][i];
    operands[1][i] -= lr * attrs.step_scale * o[i];
  }
}

namespace {

double RootMeanSquare(const Values& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares / static_cast<double>(x.size()));
}

// Means of rows or columns follow those of `squares` of a matrix.
void FollowMeans(const Values& squares, double decay, Values* rows, Values* columns) {
  const size_t r = rows->size(), c = columns->size();
  for (double& mean : *rows) mean *= decay;
  for (double& mean : *columns) mean *= decay;
  for (size_t i = 0; i < r; ++i) {
    for (size_t j = 0; j < c; ++j) {
      (*rows)[i] += (1 - decay) * squares[i * c + j] / static_cast<double>(c);
      (*columns)[j] += (1 - decay) * squares[i * c + j] / static_cast<double>(r);
    }
  }
}

// x over the root of what the means say of its squares.
Values Divided(Values x, const Values& rows, const Values& columns) {
  double mean = 0;
  for (const double row : rows) mean += row / static_cast<double>(rows.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double row = rows[i / columns.size()], column = columns[i % columns.size()];
    x[i] /= std::sqrt(row / mean) * std::sqrt(column);
  }
  return x;
}

}  // namespace

// As optimizer_rule.h writes the two rules.
void UpdateFactoredRef(const UpdateAttrs& attrs, std::span<const TensorShape> shapes,
                       std::span<Values> operands) {
  const bool came = attrs.rule == OptimizerRule::kCame, vector = !shapes[3].absent();
  const double beta1 = attrs.beta1, beta2 = came ? attrs.beta2 : 1 - operands[9][2];
  Values g = operands[0], squares;
  for (double& value : g) {
    value *= operands[8][0];
    squares.push_back(value * value + attrs.epsilon);
  }
  Values u = g;
  for (size_t i = 0; vector && i < u.size(); ++i) {
    double& v = operands[3][i];
    v = beta2 * v + (1 - beta2) * squares[i];
    u[i] = g[i] / std::sqrt(v);
  }
  if (!vector) {
    FollowMeans(squares, beta2, &operands[4], &operands[5]);
    u = Divided(g, operands[4], operands[5]);
  }
  const double size = RootMeanSquare(u), clip = attrs.clip_threshold;
  for (double& value : u) value /= clip > 0 ? std::max(1.0, size / clip) : 1.0;
  double rate = operands[9][0] * attrs.lr_scale;
  if (attrs.least_scale > 0)
    rate *= std::max<double>(attrs.least_scale, RootMeanSquare(operands[1]));
  Values step = u, errors;
  for (size_t i = 0; i < u.size(); ++i) {
    if (!came) step[i] *= rate;
    if (shapes[2].absent()) continue;
    double& m = operands[2][i];
    m = beta1 * m + (1 - beta1) * step[i];
    errors.push_back((u[i] - m) * (u[i] - m) + attrs.error_epsilon);
    step[i] = m;
  }
  if (came && !vector) {
    FollowMeans(errors, attrs.beta3, &operands[6], &operands[7]);
    step = Divided(step, operands[6], operands[7]);
  }
  for (size_t i = 0; i < u.size(); ++i) {
    double& w = operands[1][i];
    w -= rate * attrs.weight_decay * w;
    w -= came ? rate * step[i] : step[i];
  }
}

}  // namespace terrace::kernels::conformance
