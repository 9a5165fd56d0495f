// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/conformance/reference_tools.h"

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

}  // namespace

void AttentionRef(const AttentionAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[0].size[2];
  Begin(&operands[3], shapes[3], false);
  Begin(&operands[4], shapes[4], false);
  ForEachQuery(attrs, shapes, operands[5], [&](const Query& query) {
    const double* q = &operands[0][(query.row * shapes[0].size[1] + query.head) * d];
    double* o = &operands[3][(query.row * shapes[0].size[1] + query.head) * d];
    const auto kv = [&](int operand, int64_t row) {
      return &operands[operand][(row * shapes[1].size[1] + query.kv_head) * d];
    };
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t j = query.first_key_row; j <= query.row; ++j) {
      largest = std::max(largest, attrs.scale * Dot(q, kv(1, j), d));
    }
    double sum = 0;
    for (int64_t j = query.first_key_row; j <= query.row; ++j) {
      const double p = std::exp(attrs.scale * Dot(q, kv(1, j), d) - largest);
      sum += p;
      for (int64_t i = 0; i < d; ++i) o[i] += p * kv(2, j)[i];
    }
    for (int64_t i = 0; i < d; ++i) o[i] /= sum;
    operands[4][query.lse_index] = largest + std::log(sum);
  });
}

void AttentionGradRef(const AttentionAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[0].size[2];
  for (int output : {6, 7, 8}) Begin(&operands[output], shapes[output], false);
  ForEachQuery(attrs, shapes, operands[9], [&](const Query& query) {
    const int64_t q_at = (query.row * shapes[0].size[1] + query.head) * d;
    const double* q = &operands[0][q_at];
    const double* grad = &operands[5][q_at];
    const double delta = Dot(grad, &operands[3][q_at], d);
    for (int64_t j = query.first_key_row; j <= query.row; ++j) {
      const int64_t kv_at = (j * shapes[1].size[1] + query.kv_head) * d;
      const double* k = &operands[1][kv_at];
      const double p = std::exp(attrs.scale * Dot(q, k, d) - operands[4][query.lse_index]);
      const double ds = attrs.scale * p * (Dot(grad, &operands[2][kv_at], d) - delta);
      for (int64_t i = 0; i < d; ++i) {
        operands[6][q_at + i] += ds * k[i];
        operands[7][kv_at + i] += ds * q[i];
        operands[8][kv_at + i] += p * grad[i];
      }
    }
  });
}

}  // namespace terrace::kernels::conformance
