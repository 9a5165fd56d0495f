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

}  // namespace terrace::kernels::conformance
