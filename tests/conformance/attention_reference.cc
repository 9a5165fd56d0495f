// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/conformance/reference_tools.h"
#include "tests/conformance/score_reference.h"

namespace terrace::kernels::conformance {
namespace {

using Shapes = std::span<const TensorShape>;
using Operands = std::span<Values>;

// One query of one head: where it, its keys and its results lie.
struct Query {
  int64_t row = 0, first_key_row = 0, head = 0, kv_head = 0;
  int64_t lse_index = 0;
};

// Calls body for every query of the batch. `starts`: of the rows' documents; empty: each sequence
// is one.
template <typename Body>
void ForEachQuery(const AttentionAttrs& attrs, Shapes shapes, const Values& starts,
                  const Body& body) {
  const int64_t heads = shapes[0].size[1];
  const int64_t group = heads / shapes[1].size[1];
  for (int64_t row = 0; row < shapes[0].rows(); ++row) {
    const int64_t position = row % attrs.sequence;
    const int64_t start = starts.empty() ? 0 : static_cast<int64_t>(starts[row]);
    const int64_t document = position - start + 1;  // tokens of it so far
    const int64_t seen = attrs.window == 0 ? document : std::min(attrs.window, document);
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t batch = row / attrs.sequence;
      body(Query{.row = row,
                 .first_key_row = row - seen + 1,
                 .head = head,
                 .kv_head = head / group,
                 .lse_index = (batch * heads + head) * attrs.sequence + position});
    }
  }
}

// o[0..d) of one query over keys and values that are `at(operand, j)` for j in [first, end), the
// last of them its own: `score(j, s)` is what the scaled product s becomes, `kept(j)` what its
// element of the softmax is multiplied by. Returns the log of the sum of exponentials.
template <typename At, typename Score, typename Kept>
double Attend(double scale, const double* q, int64_t d, int64_t first, int64_t end, const At& at,
              const Score& score, const Kept& kept, double* o) {
  const auto score_of = [&](int64_t j) { return score(j, scale * Dot(q, at(0, j), d)); };
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t j = first; j < end; ++j) largest = std::max(largest, score_of(j));
  double sum = 0;
  for (int64_t j = first; j < end; ++j) {
    const double p = std::exp(score_of(j) - largest);
    sum += p;
    for (int64_t i = 0; i < d; ++i) o[i] += kept(j) * p * at(1, j)[i];
  }
  for (int64_t i = 0; i < d; ++i) o[i] /= sum;
  return largest + std::log(sum);
}

}  // namespace

void AttentionRef(const AttentionAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[0].size[2];
  Begin(&operands[3], shapes[3], false);
  Begin(&operands[4], shapes[4], false);
  ForEachQuery(attrs, shapes, operands[5], [&](const Query& query) {
    const double* q = &operands[0][(query.row * shapes[0].size[1] + query.head) * d];
    double* o = &operands[3][(query.row * shapes[0].size[1] + query.head) * d];
    const auto kv = [&](int which, int64_t row) {
      return &operands[1 + which][(row * shapes[1].size[1] + query.kv_head) * d];
    };
    const double number =
        NumberRef(operands[6], query.row / attrs.sequence, shapes[0].rows() / attrs.sequence);
    const int64_t begin = query.row / attrs.sequence * attrs.sequence;
    const auto score = [&](int64_t j, double s) {
      return ChangedScoreRef(attrs.terms, query.head, s, query.row - j).score;
    };
    const auto kept = [&](int64_t j) {
      return KeptRef(attrs.terms, query.head, number, query.row - begin, j - begin);
    };
    operands[4][query.lse_index] =
        Attend(attrs.scale, q, d, query.first_key_row, query.row + 1, kv, score, kept, o);
  });
}

void AttentionCachedRef(const AttentionAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t heads = shapes[0].size[1], kv_heads = shapes[1].size[1], d = shapes[0].size[2];
  const int64_t kept = shapes[3].size[1], elements = kv_heads * d;
  Begin(&operands[6], shapes[6], false);
  for (int64_t row = 0; row < shapes[0].rows(); ++row) {
    const int64_t b = row / attrs.sequence, i = row % attrs.sequence;
    const auto position = static_cast<int64_t>(operands[5][2 * b]) + i;
    if (i >= operands[5][2 * b + 1]) continue;
    for (int which : {0, 1}) {
      std::copy_n(&operands[1 + which][row * elements], elements,
                  &operands[3 + which][(b * kept + position) * elements]);
    }
    const int64_t first = attrs.window == 0 ? 0 : std::max<int64_t>(0, position - attrs.window + 1);
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t kv_head = head / (heads / kv_heads);
      const auto at = [&](int which, int64_t j) {
        return &operands[3 + which][(b * kept + j) * elements + kv_head * d];
      };
      const int64_t q_at = (row * heads + head) * d;
      const auto score = [&](int64_t j, double s) {
        return ChangedScoreRef(attrs.terms, head, s, position - j).score;
      };
      Attend(
          attrs.scale, &operands[0][q_at], d, first, position + 1, at, score,
          [](int64_t) { return 1.0; }, &operands[6][q_at]);
    }
  }
}

void AttentionGradRef(const AttentionAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[0].size[2];
  for (int output : {6, 7, 8}) Begin(&operands[output], shapes[output], false);
  ForEachQuery(attrs, shapes, operands[9], [&](const Query& query) {
    const int64_t q_at = (query.row * shapes[0].size[1] + query.head) * d;
    const double* q = &operands[0][q_at];
    const double* grad = &operands[5][q_at];
    const double delta = Dot(grad, &operands[3][q_at], d);
    const double number =
        NumberRef(operands[10], query.row / attrs.sequence, shapes[0].rows() / attrs.sequence);
    const int64_t begin = query.row / attrs.sequence * attrs.sequence;
    for (int64_t j = query.first_key_row; j <= query.row; ++j) {
      const int64_t kv_at = (j * shapes[1].size[1] + query.kv_head) * d;
      const double* k = &operands[1][kv_at];
      const auto [score, slope] =
          ChangedScoreRef(attrs.terms, query.head, attrs.scale * Dot(q, k, d), query.row - j);
      const double kept = KeptRef(attrs.terms, query.head, number, query.row - begin, j - begin);
      const double p = std::exp(score - operands[4][query.lse_index]);
      const double ds =
          attrs.scale * slope * p * (kept * Dot(grad, &operands[2][kv_at], d) - delta);
      for (int64_t i = 0; i < d; ++i) {
        operands[6][q_at + i] += ds * k[i];
        operands[7][kv_at + i] += ds * q[i];
        operands[8][kv_at + i] += kept * p * grad[i];
      }
    }
  });
}

}  // namespace terrace::kernels::conformance
