// The LM head and the loss (forward.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/layers/forward.h"
#include "coordinator/compiler/state/partition.h"

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

// Indices of parameters that are the head's rows in order.
std::vector<int> Forward::HeadTiles() const {
  const int first =
      parameters_.Find(config_.tied_embeddings ? TensorRole::kTokenEmbedding : TensorRole::kLmHead);
  std::vector<int> tiles;
  for (int i = 0; i < parameters_.all()[first].tiles; ++i) tiles.push_back(first + i);
  return tiles;
}

// A head in tiles is prefetched tile by tile for each chunk of rows, so that it is never whole. A
// head in one piece is prefetched once for all chunks.
void Forward::ForgetTiles() {
  if (HeadTiles().size() > 1) ForgetWeights();
}

// Otherwise one op makes the loss and its gradient without ever holding all logits.
bool Forward::LogitsInMemory() const {
  return parallel_.groups.tensor != kNone || HeadTiles().size() > 1;
}

kernels::LossTerms Forward::TermsOfLoss() const {
  kernels::LossTerms terms = options_.terms;
  terms.softcap = static_cast<float>(config_.logits_softcap);
  return terms;
}

int64_t Forward::LossChunkRows(int64_t rows) const {
  const int64_t row_bytes = VocabularyRows(config_, parallel_) * kernels::SizeOf(DType::kF32);
  return std::min(rows, std::max(kMinChunkRows, kLogitsBytes / row_bytes));
}

// Some rows of the loss over a sharded or tiled vocabulary, as far as evaluation needs it.
struct Forward::LossChunk {
  int64_t begin = 0;
  Slice hidden, targets, logits, rows;
};

Forward::LossChunk Forward::ExplicitLoss(Slice hidden, Slice targets, const LossOutputs& to,
                                         int64_t begin, int64_t rows) {
  const int64_t ranks = parallel_.tensor(), columns = VocabularyRows(config_, parallel_);
  LossChunk chunk = {
      .begin = begin, .hidden = Rows(hidden, begin, rows), .targets = Range(targets, begin, rows)};
  chunk.logits = builder_.NewValue(absl::StrCat("logits", begin), v1::ACTIVATION, DType::kF32,
                                   {rows, columns});
  int64_t column = 0;
  for (int tile : HeadTiles()) {
    const Slice weight = weights_.OfParameter(tile);
    const int64_t count = weight.shape.rows();
    Linear(chunk.hidden, weight, {}, Columns(chunk.logits, column, count), options_.precisions.head,
           {.transpose = true}, "lm_head");
    column += count;
  }
  const kernels::CrossEntropyAttrs attrs = {.shard_rows = columns,
                                            .vocabulary = config_.vocabulary,
                                            .accumulate = begin > 0,
                                            .terms = TermsOfLoss()};
  const Slice own = Statistic(absl::StrCat("loss_rows.own", begin), {rows, 3});
  builder_.Compute(Op::kCrossEntropyRows, attrs, {chunk.logits, chunk.targets, own}, "loss rows");
  if (parallel_.groups.tensor == kNone) {
    chunk.rows = own;
    chunk.rows.shape = DenseShape(DType::kF32, {1, rows, 3});
  } else {
    chunk.rows = Statistic(absl::StrCat("loss_rows", begin), {ranks, rows, 3});
    builder_.Collective(v1::ALL_GATHER, parallel_.groups.tensor, own, chunk.rows,
                        "gather loss rows");
  }
  if (!to.stats.absent()) {
    const Slice losses = to.losses.absent() ? to.losses : Range(to.losses, begin, rows);
    builder_.Compute(Op::kCrossEntropyLoss, attrs, {chunk.targets, chunk.rows, to.stats, losses},
                     "loss");
  }
  return chunk;
}

void Forward::Loss(Slice hidden, Slice targets, Slice stats, Slice losses) {
  if (!LogitsInMemory()) {
    builder_.Compute(
        Op::kLmHeadLoss,
        kernels::LossAttrs{.precision = options_.precisions.head, .terms = TermsOfLoss()},
        {hidden, HeadWeight(), targets, stats, losses}, "lm_head_loss");
    return;
  }
  const int64_t rows = hidden.shape.rows(), step = LossChunkRows(rows);
  for (int64_t begin = 0; begin < rows; begin += step) {
    ForgetTiles();
    ExplicitLoss(hidden, targets, {stats, losses}, begin, std::min(step, rows - begin));
  }
}

// Nobody asks for the sum over tokens.
Slice Forward::LossesOf(Slice hidden, Slice targets) {
  const Slice losses = Statistic("losses", {hidden.shape.rows()});
  Loss(hidden, targets, Statistic("losses.sum", {2}), losses);
  return losses;
}

Slice Forward::PairLoss(Slice hidden, Slice reference, const BatchSlices& batch) {
  const Slice kept = AsReference([&] { return LossesOf(reference, batch.targets); });
  const Slice losses = LossesOf(hidden, batch.targets);
  const Slice weights = Statistic("pair_weights", {losses.shape.rows()});
  kernels::PreferenceAttrs attrs = *options_.preference;
  attrs.sequence = options_.sequence;
  builder_.Compute(Op::kPreferenceLoss, attrs, {losses, kept, weights, batch.stats, batch.margins},
                   "preference loss");
  return weights;
}

Slice Forward::LossAndGradient(Slice hidden, const BatchSlices& batch,
                               ParameterGradients* gradients) {
  const Slice dhidden = builder_.NewGradientOf(builder_.graph().values[hidden.value]);
  const bool weighted = !batch.weights.absent();
  if (!LogitsInMemory()) {
    const Slice weight = HeadWeight();
    bool first = true;
    const bool trains = parameters_.Trains(weight, builder_.graph());
    const Slice dweight = trains ? gradients->Of(weight, &builder_, &first) : Slice();
    builder_.Compute(
        Op::kLmHeadLossGrad,
        kernels::LossAttrs{
            .accumulate = !first, .precision = options_.precisions.head, .terms = TermsOfLoss()},
        {hidden, weight, batch.targets, weighted ? Statistic("losses.sum", {2}) : batch.stats,
         dhidden, dweight, batch.schedule, batch.weights},
        "lm_head_loss grad");
    return dhidden;
  }
  const int64_t rows = hidden.shape.rows(), step = LossChunkRows(rows);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    ForgetTiles();
    const LossChunk chunk = ExplicitLoss(hidden, batch.targets,
                                         {.stats = weighted ? Slice() : batch.stats}, begin, count);
    builder_.Compute(Op::kCrossEntropyGrad,
                     kernels::CrossEntropyAttrs{.shard_rows = VocabularyRows(config_, parallel_),
                                                .vocabulary = config_.vocabulary,
                                                .terms = TermsOfLoss()},
                     {chunk.targets, chunk.rows, chunk.logits, batch.schedule,
                      weighted ? Range(batch.weights, begin, count) : Slice()},
                     "loss grad");
    HeadGradients(chunk, Rows(dhidden, begin, count), gradients);
  }
  return dhidden;
}

// Tiles were dropped after the logits: they come again, one after the other.
void Forward::HeadGradients(const LossChunk& chunk, Slice dhidden, ParameterGradients* gradients) {
  const std::vector<int> tiles = HeadTiles();
  ForgetTiles();
  int64_t column = 0;
  for (int tile : tiles) {
    if (column > 0) builder_.Mark();
    const Slice weight = weights_.OfParameter(tile);
    const int64_t count = weight.shape.rows();
    const Slice dlogits = Columns(chunk.logits, column, count);
    if (parameters_.Trains(weight, builder_.graph())) {
      bool first = false;
      const Slice dweight = gradients->Of(weight, &builder_, &first);
      builder_.Compute(
          Op::kMatmul,
          kernels::MatmulAttrs{
              .transpose_a = true, .accumulate = !first, .precision = options_.precisions.head},
          {dlogits, chunk.hidden, dweight, {}, {}, {}}, "lm_head dweight");
    }
    builder_.Compute(
        Op::kMatmul,
        kernels::MatmulAttrs{.accumulate = column > 0, .precision = options_.precisions.head},
        {dlogits, weight, dhidden, {}, {}, {}}, "lm_head dx");
    column += count;
  }
}

Slice Forward::Logits(Slice hidden) {
  const Slice logits = builder_.NewValue("logits", v1::ACTIVATION, DType::kF32,
                                         {hidden.shape.rows(), config_.vocabulary});
  Linear(hidden, HeadWeight(), {}, logits, options_.precisions.head, {.transpose = true},
         "lm_head");
  if (const float softcap = TermsOfLoss().softcap; softcap > 0)
    builder_.Compute(Op::kSoftcap, kernels::ScaleAttrs{.scale = softcap}, {logits, logits},
                     "logits cap");
  return logits;
}

}  // namespace terrace::compiler
