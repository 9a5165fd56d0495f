// The LM head and the loss (forward.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/forward.h"
#include "coordinator/compiler/partition.h"

namespace terrace::compiler {

using kernels::DType;
using kernels::Op;

namespace {

// Logits of a sharded vocabulary exist in chunks of rows of at most so many bytes, but not fewer
// rows than products are fast with.
constexpr int64_t kLogitsBytes = int64_t{64} << 20;
constexpr int64_t kMinChunkRows = 256;

}  // namespace

Slice Forward::HeadWeight() {
  return Weight(config_.tied_embeddings ? TensorRole::kTokenEmbedding : TensorRole::kLmHead);
}

int64_t Forward::LossChunkRows(int64_t rows) const {
  const int64_t row_bytes = VocabularyRows(config_, parallel_) * kernels::SizeOf(DType::kF32);
  return std::min(rows, std::max(kMinChunkRows, kLogitsBytes / row_bytes));
}

// Some rows of the loss over a sharded vocabulary, as far as evaluation needs it.
struct Forward::LossChunk {
  Slice hidden, targets, logits, rows;
};

Forward::LossChunk Forward::ShardedLoss(Slice hidden, Slice targets, Slice stats, int64_t begin,
                                        int64_t rows) {
  const int64_t ranks = parallel_.tensor(), columns = VocabularyRows(config_, parallel_);
  LossChunk chunk = {.hidden = Rows(hidden, begin, rows), .targets = Range(targets, begin, rows)};
  chunk.logits = builder_.NewValue(absl::StrCat("logits", begin), v1::ACTIVATION, DType::kF32,
                                   {rows, columns});
  Linear(chunk.hidden, HeadWeight(), {}, chunk.logits, {.transpose = true}, "lm_head");
  const kernels::CrossEntropyAttrs attrs = {
      .shard_rows = columns, .vocabulary = config_.vocabulary, .accumulate = begin > 0};
  const Slice own = Statistic(absl::StrCat("loss_rows.own", begin), {rows, 3});
  chunk.rows = Statistic(absl::StrCat("loss_rows", begin), {ranks, rows, 3});
  builder_.Compute(Op::kCrossEntropyRows, attrs, {chunk.logits, chunk.targets, own}, "loss rows");
  builder_.Collective(v1::ALL_GATHER, parallel_.groups.tensor, own, chunk.rows, "gather loss rows");
  builder_.Compute(Op::kCrossEntropyLoss, attrs, {chunk.targets, chunk.rows, stats}, "loss");
  return chunk;
}

void Forward::Loss(Slice hidden, Slice targets, Slice stats) {
  if (parallel_.groups.tensor == kNone) {
    builder_.Compute(Op::kLmHeadLoss, kernels::LossAttrs{.precision = options_.precision},
                     {hidden, HeadWeight(), targets, stats}, "lm_head_loss");
    return;
  }
  const int64_t rows = hidden.shape.rows(), step = LossChunkRows(rows);
  for (int64_t begin = 0; begin < rows; begin += step) {
    ShardedLoss(hidden, targets, stats, begin, std::min(step, rows - begin));
  }
}

Slice Forward::LossAndGradient(Slice hidden, Slice targets, Slice stats,
                               ParameterGradients* gradients) {
  const Slice weight = HeadWeight();
  const Slice dhidden = builder_.NewGradientOf(builder_.graph().values[hidden.value]);
  bool first = false;
  const Slice dweight = gradients->Of(weight, &builder_, &first);
  if (parallel_.groups.tensor == kNone) {
    builder_.Compute(Op::kLmHeadLossGrad,
                     kernels::LossAttrs{.accumulate = !first, .precision = options_.precision},
                     {hidden, weight, targets, stats, dhidden, dweight}, "lm_head_loss grad");
    return dhidden;
  }
  const int64_t rows = hidden.shape.rows(), step = LossChunkRows(rows);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const LossChunk chunk = ShardedLoss(hidden, targets, stats, begin, count);
    builder_.Compute(Op::kCrossEntropyGrad,
                     kernels::CrossEntropyAttrs{.shard_rows = VocabularyRows(config_, parallel_),
                                                .vocabulary = config_.vocabulary},
                     {chunk.targets, chunk.rows, chunk.logits}, "loss grad");
    builder_.Compute(Op::kMatmul,
                     kernels::MatmulAttrs{.transpose_a = true,
                                          .accumulate = !first || begin > 0,
                                          .precision = options_.precision},
                     {chunk.logits, chunk.hidden, dweight, {}, {}, {}}, "lm_head dweight");
    builder_.Compute(Op::kMatmul, kernels::MatmulAttrs{.precision = options_.precision},
                     {chunk.logits, weight, Rows(dhidden, begin, count), {}, {}, {}}, "lm_head dx");
  }
  return dhidden;
}

Slice Forward::Logits(Slice hidden) {
  const Slice logits = builder_.NewValue("logits", v1::ACTIVATION, DType::kF32,
                                         {hidden.shape.rows(), config_.vocabulary});
  Linear(hidden, HeadWeight(), {}, logits, {.transpose = true}, "lm_head");
  return logits;
}

}  // namespace terrace::compiler
