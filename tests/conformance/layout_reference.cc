// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/layout_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/conformance/reference_tools.h"
#include "tests/conformance/score_reference.h"

namespace terrace::kernels::conformance {
namespace {

using Shapes = std::span<const TensorShape>;
using Operands = std::span<Values>;

// A key of a block: of its first element in k, v, dk and dv, and its position.
struct BlockKey {
  int64_t at = 0;
  int64_t position = 0;
};

// One query of one head and the keys of this block that it sees.
struct BlockQuery {
  int64_t at = 0;   // of its first element in q, o, do and dq
  int64_t lse = 0;  // of its log-sum-exp
  int64_t head = 0;
  int64_t row = 0;
  int64_t position = 0;
  std::vector<BlockKey> keys;
};

// The scores of a query of a block, and what elements of its softmax are multiplied by.
class BlockScores {
 public:
  BlockScores(const AttentionBlockAttrs& attrs, Shapes shapes, Operands operands,
              const Values& places, const BlockQuery& query)
      : attrs_(attrs),
        d_(shapes[0].size[2]),
        q_(operands[0]),
        k_(operands[1]),
        query_(query),
        number_(NumberRef(places, query.row / attrs.sequence, shapes[0].rows() / attrs.sequence)) {}
  ScoreRef Of(const BlockKey& key) const {
    const double product = attrs_.scale * Dot(&q_[query_.at], &k_[key.at], d_);
    return ChangedScoreRef(attrs_.terms, query_.head, product, query_.position - key.position);
  }
  double Kept(const BlockKey& key) const {
    return KeptRef(attrs_.terms, query_.head, number_, query_.position, key.position);
  }

 private:
  const AttentionBlockAttrs& attrs_;
  const int64_t d_;
  const Values &q_, &k_;
  const BlockQuery& query_;
  const double number_;
};

template <typename Body>
void ForEachQuery(const AttentionBlockAttrs& attrs, Shapes shapes, const Values& starts,
                  const Body& body) {
  const int64_t tokens = shapes[0].rows(), heads = shapes[0].size[1], d = shapes[0].size[2];
  const int64_t kv_heads = shapes[1].size[1], sequence = attrs.sequence;
  TokenShare keys = attrs.context;
  keys.index = (keys.index - attrs.step + keys.ranks) % keys.ranks;
  for (int64_t row = 0; row < tokens; ++row) {
    const int64_t first = row / sequence * sequence;
    const int64_t position = attrs.context.Position(row, sequence);
    for (int64_t head = 0; head < heads; ++head) {
      BlockQuery query = {.at = (row * heads + head) * d,
                          .lse = (row / sequence * heads + head) * sequence + row % sequence,
                          .head = head,
                          .row = row,
                          .position = position};
      for (int64_t j = first; j < first + sequence; ++j) {
        const int64_t key = keys.Position(j, sequence), behind = position - key;
        if (behind < 0 || (attrs.window > 0 && behind >= attrs.window)) continue;
        if (!starts.empty() && key < static_cast<int64_t>(starts[row])) continue;
        query.keys.push_back({(j * kv_heads + head / (heads / kv_heads)) * d, key});
      }
      body(query);
    }
  }
}

}  // namespace

void AttentionBlockRef(const AttentionBlockAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[0].size[2];
  Begin(&operands[3], shapes[3], attrs.accumulate);
  if (!attrs.accumulate) {
    operands[4].assign(shapes[4].Elements(), -std::numeric_limits<double>::infinity());
  }
  ForEachQuery(attrs, shapes, operands[5], [&](const BlockQuery& query) {
    if (query.keys.empty()) return;
    const BlockScores scores(attrs, shapes, operands, operands[6], query);
    double* o = &operands[3][query.at];
    double& lse = operands[4][query.lse];
    double largest = lse;
    for (const BlockKey& key : query.keys) largest = std::max(largest, scores.Of(key).score);
    double sum = std::exp(lse - largest);
    for (int64_t i = 0; i < d; ++i) o[i] *= sum;
    for (const BlockKey& key : query.keys) {
      const double p = std::exp(scores.Of(key).score - largest);
      sum += p;
      for (int64_t i = 0; i < d; ++i) o[i] += scores.Kept(key) * p * operands[2][key.at + i];
    }
    for (int64_t i = 0; i < d; ++i) o[i] /= sum;
    lse = largest + std::log(sum);
  });
}

void AttentionBlockGradRef(const AttentionBlockAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[0].size[2];
  Begin(&operands[6], shapes[6], attrs.accumulate);
  for (int output : {7, 8}) Begin(&operands[output], shapes[output], attrs.accumulate_keys);
  ForEachQuery(attrs, shapes, operands[9], [&](const BlockQuery& query) {
    const BlockScores scores(attrs, shapes, operands, operands[10], query);
    const double* q = &operands[0][query.at];
    const double* grad = &operands[5][query.at];
    const double delta = Dot(grad, &operands[3][query.at], d);
    for (const BlockKey& key : query.keys) {
      const int64_t at = key.at;
      const double* k = &operands[1][at];
      const auto [score, slope] = scores.Of(key);
      const double kept = scores.Kept(key);
      const double p = std::exp(score - operands[4][query.lse]);
      const double ds = attrs.scale * slope * p * (kept * Dot(grad, &operands[2][at], d) - delta);
      for (int64_t i = 0; i < d; ++i) {
        operands[6][query.at + i] += ds * k[i];
        operands[7][at + i] += ds * q[i];
        operands[8][at + i] += kept * p * grad[i];
      }
    }
  });
}

void CrossEntropyRowsRef(const CrossEntropyAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t columns = attrs.shard_rows, first = attrs.shard * columns;
  operands[2].assign(shapes[2].Elements(), 0.0);
  for (int64_t row = 0; row < shapes[0].rows(); ++row) {
    double* out = &operands[2][3 * row];
    out[0] = std::numeric_limits<float>::lowest();
    for (int64_t c = 0; c < columns && first + c < attrs.vocabulary; ++c) {
      out[0] = std::max(out[0], CappedRef(attrs.terms.softcap, operands[0][row * columns + c]));
    }
    for (int64_t c = 0; c < columns && first + c < attrs.vocabulary; ++c) {
      const double logit = CappedRef(attrs.terms.softcap, operands[0][row * columns + c]);
      out[1] += std::exp(logit - out[0]);
      const double smoothing = attrs.terms.label_smoothing;
      if (operands[1][row] >= 0)
        out[2] += smoothing / static_cast<double>(attrs.vocabulary) * logit;
      if (first + c == static_cast<int64_t>(operands[1][row])) out[2] += (1 - smoothing) * logit;
    }
  }
}

namespace {

// log sum exp of a row over all shards.
double LogSumExp(const Values& rows, int64_t shards, int64_t n, int64_t row) {
  double sum = 0;
  for (int64_t s = 0; s < shards; ++s) {
    const double* part = &rows[(s * n + row) * 3];
    sum += part[1] * std::exp(part[0]);
  }
  return std::log(sum);
}

}  // namespace

void CrossEntropyLossRef(const CrossEntropyAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t n = shapes[0].rows(), shards = shapes[1].size[0];
  Begin(&operands[2], shapes[2], attrs.accumulate);
  if (!shapes[3].absent()) Begin(&operands[3], shapes[3], false);
  for (int64_t row = 0; row < n; ++row) {
    if (operands[0][row] < 0) continue;
    const double lse = LogSumExp(operands[1], shards, n, row);
    double loss = lse + attrs.terms.z_loss * lse * lse;
    for (int64_t s = 0; s < shards; ++s) loss -= operands[1][(s * n + row) * 3 + 2];
    operands[2][0] += loss;
    operands[2][1] += 1;
    if (!shapes[3].absent()) operands[3][row] = loss;
  }
}

void CrossEntropyGradRef(const CrossEntropyAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t n = shapes[0].rows(), shards = shapes[1].size[0], columns = attrs.shard_rows;
  const double scheduled = shapes[3].absent() ? 1.0 : operands[3][3];
  for (int64_t row = 0; row < n; ++row) {
    const double factor = shapes[4].absent() ? scheduled : scheduled * operands[4][row];
    const double lse = LogSumExp(operands[1], shards, n, row);
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t column = attrs.shard * columns + c;
      double& logit = operands[2][row * columns + c];
      const bool counts = operands[0][row] >= 0 && column < attrs.vocabulary;
      const double smoothing = attrs.terms.label_smoothing;
      logit = CappedRef(attrs.terms.softcap, logit);
      const double slope = CappedSlopeRef(attrs.terms.softcap, logit);
      logit = counts ? std::exp(logit - lse) * (1 + 2 * attrs.terms.z_loss * lse) -
                           smoothing / static_cast<double>(attrs.vocabulary)
                     : 0.0;
      if (counts && column == static_cast<int64_t>(operands[0][row])) logit -= 1 - smoothing;
      logit *= factor * slope;
    }
  }
}

void AddResidualRef(Shapes shapes, Operands operands) {
  const int64_t d = shapes[0].size[1];
  operands[3] = operands[0];
  for (size_t i = 0; i < operands[3].size(); ++i) {
    if (!shapes[1].absent()) operands[3][i] += operands[1][i];
    if (!shapes[2].absent()) operands[3][i] += operands[2][i % d];
  }
}

void PermuteRef(const PermuteAttrs& attrs, Shapes shapes, Operands operands) {
  const auto& from = shapes[0].size;
  const auto& to = shapes[1].size;
  operands[1].assign(shapes[1].Elements(), 0.0);
  for (int64_t i = 0; i < shapes[1].Elements(); ++i) {
    int64_t rest = i;
    std::array<int64_t, 4> at = {};
    for (int d = 3; d >= 0; --d) {
      at[attrs.order[d]] = rest % to[d];
      rest /= to[d];
    }
    operands[1][i] = operands[0][((at[0] * from[1] + at[1]) * from[2] + at[2]) * from[3] + at[3]];
  }
}

}  // namespace terrace::kernels::conformance
