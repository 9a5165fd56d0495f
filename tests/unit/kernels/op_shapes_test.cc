// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "kernels/op.h"

namespace terrace::kernels {
namespace {

TensorShape Dense(DType dtype, std::vector<int64_t> sizes) {
  TensorShape shape = {.dtype = dtype, .dims = static_cast<int>(sizes.size())};
  for (size_t d = 0; d < sizes.size(); ++d) shape.size[d] = sizes[d];
  shape.row_stride = shape.RowElements();
  return shape;
}
TensorShape F32(std::vector<int64_t> sizes) { return Dense(DType::kF32, std::move(sizes)); }
TensorShape BF16(std::vector<int64_t> sizes) { return Dense(DType::kBF16, std::move(sizes)); }
TensorShape I32(std::vector<int64_t> sizes) { return Dense(DType::kI32, std::move(sizes)); }
TensorShape Strided(TensorShape shape, int64_t row_stride) {
  shape.row_stride = row_stride;
  return shape;
}
const TensorShape kAbsent;

struct BadCase {
  std::string name;
  Op op;
  OpAttrs attrs;
  std::vector<TensorShape> operands;
  std::string error;
};

class BadShapes : public testing::TestWithParam<BadCase> {};

TEST_P(BadShapes, AreRefusedInOneSentence) {
  const BadCase& bad = GetParam();
  EXPECT_EQ(CheckShapes(bad.op, bad.attrs, bad.operands), bad.error);
}

std::vector<TensorShape> Matmul(TensorShape a, TensorShape b, TensorShape c) {
  return {a, b, c, kAbsent, kAbsent, kAbsent};
}

std::vector<TensorShape> Attention(int64_t tokens, int64_t heads, int64_t kv_heads, TensorShape lse,
                                   TensorShape places = kAbsent) {
  const TensorShape q = F32({tokens, heads, 8});
  const TensorShape k = F32({tokens, kv_heads, 8});
  return {q, k, k, q, lse, kAbsent, places};
}

std::vector<BadCase> BadCases() {
  const std::vector<TensorShape> four = {F32({3}), F32({3}), F32({3}),
                                         F32({3}), F32({4}), F32({4})};
  const TensorShape codes = Dense(DType::kU8, {100});
  const TensorShape square = F32({3, 3});
  const std::vector<TensorShape> matrix = {square, square, square, {}, F32({4}), F32({4})};
  const TensorShape x = F32({3, 5});
  const std::vector<TensorShape> factored = {x,        x,  {}, {},       F32({3}),
                                             F32({5}), {}, {}, F32({4}), F32({4})};
  const UpdateAttrs adafactor = {.rule = OptimizerRule::kAdafactor, .beta1 = 0};
  const std::vector<TensorShape> int8 = {F32({100}), F32({100}), codes,    codes,
                                         F32({4}),   F32({4}),   F32({2}), F32({4})};
  const AttentionAttrs attention = {.sequence = 5, .scale = 1};
  const auto scores = [](const ScoreTerms& terms) {
    return AttentionAttrs{.sequence = 5, .scale = 1, .terms = terms};
  };
  const auto block = [](TokenShare share, int64_t step, int64_t sequence = 5) {
    return AttentionBlockAttrs{.sequence = sequence, .scale = 1, .context = share, .step = step};
  };
  const CrossEntropyAttrs shards = {.shard_rows = 4, .shard = 1, .vocabulary = 7};
  return {
      {"NoSuchOp", static_cast<Op>(99), NoAttrs{}, {}, "op 99 does not exist"},
      {"AttributesOfAnotherOp",
       Op::kGelu,
       NormAttrs{},
       {F32({2}), F32({2})},
       "gelu: the attributes are those of another op"},
      {"TooFewOperands",
       Op::kGelu,
       ActivationAttrs{},
       {F32({2})},
       "gelu: got 1 operands, must be 2 with absent ones counted"},
      {"RequiredOperandAbsent",
       Op::kGelu,
       ActivationAttrs{},
       {F32({2}), kAbsent},
       "gelu: operand 'y' is absent, must be given"},
      {"OtherShape",
       Op::kGelu,
       ActivationAttrs{},
       {F32({2, 3}), F32({3, 2})},
       "gelu: operand 'y' is f32[3,2], must have dimensions [2,3], as 'x' has"},
      {"MixedActivations",
       Op::kGelu,
       ActivationAttrs{},
       {F32({2}), BF16({2})},
       "gelu: operand 'y' is bf16[2], must have f32 elements like the op's others"},
      {"IntegerActivation",
       Op::kGelu,
       ActivationAttrs{},
       {I32({2}), I32({2})},
       "gelu: operand 'x' is i32[2], must have f32, bf16 or f16 elements"},
      {"SizeZero",
       Op::kGelu,
       ActivationAttrs{},
       {F32({0}), F32({0})},
       "gelu: operand 'x' must have 1 to 4 dimensions, each at least 1, and fewer than 2^56 "
       "elements"},
      {"SizeThatOverflows",
       Op::kGelu,
       ActivationAttrs{},
       {F32({int64_t{1} << 40, int64_t{1} << 40}), F32({1})},
       "gelu: operand 'x' must have 1 to 4 dimensions, each at least 1, and fewer than 2^56 "
       "elements"},
      {"RowsThatOverlap",
       Op::kGelu,
       ActivationAttrs{},
       {Strided(F32({2, 3}), 2), F32({2, 3})},
       "gelu: operand 'x' is f32[2,3]/2, must have a row stride of at least 3"},
      {"StridedVector",
       Op::kGelu,
       ActivationAttrs{},
       {Strided(F32({4}), 2), F32({4})},
       "gelu: operand 'x' is f32[4]/2, must be dense"},
      {"StridedTable",
       Op::kEmbedding,
       EmbeddingAttrs{},
       {I32({2}), Strided(F32({5, 3}), 4), kAbsent, F32({2, 3}), kAbsent},
       "embedding: operand 'table' is f32[5,3]/4, must be dense"},
      {"TooFewPositions",
       Op::kEmbedding,
       EmbeddingAttrs{.sequence = 8},
       {I32({8}), F32({5, 3}), F32({7, 3}), F32({8, 3}), kAbsent},
       "embedding: operand 'positions' is f32[7,3], must have a row for each of the sequence's 8 "
       "positions"},
      {"FloatTokens",
       Op::kEmbedding,
       EmbeddingAttrs{},
       {F32({2}), F32({5, 3}), kAbsent, F32({2, 3}), kAbsent},
       "embedding: operand 'tokens' is f32[2], must have i32 elements"},
      {"BF16Weight",
       Op::kRmsNorm,
       NormAttrs{},
       {F32({2, 3}), BF16({3}), F32({2, 3}), F32({2})},
       "rms_norm: operand 'weight' is bf16[3], must have f32 elements"},
      {"NormOfAVector",
       Op::kRmsNorm,
       NormAttrs{},
       {F32({3}), F32({3}), F32({3}), F32({1})},
       "rms_norm: operand 'x' is f32[3], must have the dimensions ..,d"},
      {"NormOfFourDimensions",
       Op::kRmsNorm,
       NormAttrs{},
       {F32({2, 2, 2, 3}), F32({3}), F32({2, 2, 2, 3}), F32({2, 2, 2})},
       "rms_norm: operand 'x' is f32[2,2,2,3], must be of shape [n,d] or [n,heads,d]"},
      {"NegativeEpsilon",
       Op::kRmsNorm,
       NormAttrs{.epsilon = -1},
       {F32({2, 3}), F32({3}), F32({2, 3}), F32({2})},
       "rms_norm: attribute 'epsilon' is -1.000000, must be finite and not negative"},
      {"ScaleOfInfinity",
       Op::kScale,
       ScaleAttrs{.scale = std::numeric_limits<float>::infinity()},
       {F32({2, 3})},
       "scale: attribute 'scale' is inf, must be finite"},
      {"SoftcapOfZero",
       Op::kSoftcap,
       ScaleAttrs{.scale = 0},
       {F32({2, 3}), F32({2, 3})},
       "softcap: attribute 'scale' is 0.000000, must be finite, above 0"},
      {"LogitsCappedBelowZero",
       Op::kCrossEntropyRows,
       CrossEntropyAttrs{.shard_rows = 3, .vocabulary = 3, .terms = {.softcap = -30}},
       {F32({2, 3}), I32({2}), F32({2, 3})},
       "cross_entropy_rows: attribute 'softcap' is -30.000000, must be finite, not negative"},
      {"EverythingDropped",
       Op::kDropout,
       DropoutAttrs{.probability = 1},
       {F32({2, 3}), I32({2, 2}), F32({2, 3})},
       "dropout: attribute 'probability' is 1.000000, must be at least 0 and below 1"},
      {"RowsAndColumnsSplit",
       Op::kDropout,
       DropoutAttrs{.row_shards = 2, .column_shards = 4},
       {F32({2, 3}), I32({4, 2}), F32({2, 3})},
       "dropout: attribute 'row_shards' is 2, must be 1, or column_shards must be, which is 4"},
      {"ShardBeyondTheLast",
       Op::kDropout,
       DropoutAttrs{.row_shards = 2, .shard = 2},
       {F32({2, 3}), I32({4, 2}), F32({2, 3})},
       "dropout: attribute 'shard' is 2, must be 0 to 1"},
      {"PlacesOfOneRankAlone",
       Op::kDropout,
       DropoutAttrs{.row_shards = 2},
       {F32({2, 3}), I32({2, 2}), F32({2, 3})},
       "dropout: operand 'places' is i32[2,2], must have a row for each of x's 2 rows on 2 ranks"},
      {"MoreColumnsThanBlocksAreCountedIn",
       Op::kDropout,
       DropoutAttrs{.column_shards = int64_t{1} << 31},
       {F32({2, 3}), I32({2, 2}), F32({2, 3})},
       "dropout: attribute 'column_shards' is 2147483648, must give fewer than 2^31 columns over "
       "all shards"},
      {"InnerSizesDiffer", Op::kMatmul, MatmulAttrs{},
       Matmul(F32({2, 3}), F32({4, 5}), F32({2, 5})),
       "matmul: operand 'b' is f32[4,5], must have dimension 0 equal to K = 3, as in 'a'"},
      {"InnerSizesDifferTransposed", Op::kMatmul, MatmulAttrs{.transpose_b = true},
       Matmul(F32({2, 3}), F32({5, 4}), F32({2, 5})),
       "matmul: operand 'b' is f32[5,4], must have dimension 1 equal to K = 3, as in 'a'"},
      {"BiasOfAnotherWidth",
       Op::kMatmul,
       MatmulAttrs{},
       {F32({2, 3}), F32({3, 5}), F32({2, 5}), F32({7}), kAbsent, kAbsent},
       "matmul: operand 'bias' is f32[7], must have dimension 0 equal to N = 5, as in 'b'"},
      {"AccumulateWithBias",
       Op::kMatmul,
       MatmulAttrs{.accumulate = true},
       {F32({2, 3}), F32({3, 5}), F32({2, 5}), F32({5}), kAbsent, kAbsent},
       "matmul: operand 'bias' is f32[5], must be absent when the product is accumulated"},
      {"AuxWithoutEpilogue",
       Op::kMatmul,
       MatmulAttrs{},
       {F32({2, 3}), F32({3, 5}), F32({2, 5}), kAbsent, kAbsent, F32({2, 5})},
       "matmul: operand 'aux' is f32[2,5], must be absent without an epilogue"},
      {"GeluGradWithoutAux", Op::kMatmul, MatmulAttrs{.epilogue = Epilogue::kGeluGrad},
       Matmul(F32({2, 3}), F32({3, 5}), F32({2, 5})),
       "matmul: operand 'aux' is absent, must be given for the gelu_grad epilogue"},
      {"AccumulateWithEpilogue", Op::kMatmul,
       MatmulAttrs{.accumulate = true, .epilogue = Epilogue::kGelu},
       Matmul(F32({2, 3}), F32({3, 5}), F32({2, 5})),
       "matmul: attribute 'accumulate' is true, must be false with an epilogue"},
      {"AGradientOfNoFp8Product", Op::kMatmul, MatmulAttrs{.gradient = Fp8Gradient::kA},
       Matmul(F32({2, 3}), F32({3, 5}), F32({2, 5})),
       "matmul: attribute 'gradient' is 1, must be 0 where the product is not fp8"},
      {"AnglesOfHalfAPair",
       Op::kRope,
       RopeAttrs{.sequence = 2},
       {F32({2, 1, 7}), F32({2, 7})},
       "rope: operand 'table' is f32[2,7], must have an even last dimension of at most the head's "
       "7"},
      {"AnglesForMoreThanTheHead",
       Op::kRope,
       RopeAttrs{.sequence = 2},
       {F32({2, 1, 6}), F32({2, 8})},
       "rope: operand 'table' is f32[2,8], must have an even last dimension of at most the head's "
       "6"},
      {"NoSuchActivation",
       Op::kSwiglu,
       ActivationAttrs{static_cast<Activation>(9)},
       {F32({2, 6}), F32({2, 6}), F32({2, 6})},
       "swiglu: attribute 'activation' is 9, must be one of Activation"},
      {"LayerNormWithUnitOffset",
       Op::kLayerNorm,
       NormAttrs{.unit_offset = true},
       {F32({2, 6}), F32({6}), kAbsent, F32({2, 6}), F32({2}), F32({2})},
       "layer_norm: attribute 'unit_offset' is true, must be false: only an RMSNorm has it"},
      {"HeadsThatDoNotDivide", Op::kAttention, attention, Attention(10, 4, 3, F32({2, 4, 5})),
       "attention: operand 'k' is f32[10,3,8], must have a number of heads that divides the "
       "query's 4"},
      {"HalfASequence", Op::kAttention, attention, Attention(12, 4, 2, F32({2, 4, 5})),
       "attention: operand 'q' is f32[12,4,8], must have a multiple of the sequence length 5 as "
       "its rows"},
      {"WrongStatistics", Op::kAttention, attention, Attention(10, 4, 2, F32({5, 4, 2})),
       "attention: operand 'lse' is f32[5,4,2], must be [batch,heads,sequence] = [2,4,5]"},
      {"ScaleZero", Op::kAttention, AttentionAttrs{.sequence = 5},
       Attention(10, 4, 2, F32({2, 4, 5})),
       "attention: attribute 'scale' is 0.000000, must be finite and above 0"},
      {"StartsOfOtherTokens",
       Op::kAttention,
       attention,
       {F32({10, 1, 8}), F32({10, 1, 8}), F32({10, 1, 8}), F32({10, 1, 8}), F32({2, 1, 5}),
        I32({5}), kAbsent},
       "attention: operand 'starts' is i32[5], must have dimension 0 equal to T = 10, as in 'q'"},
      {"HeadTooWide",
       Op::kAttention,
       attention,
       {F32({5, 1, 300}), F32({5, 1, 300}), F32({5, 1, 300}), F32({5, 1, 300}), F32({1, 1, 5}),
        kAbsent, kAbsent},
       "attention: operand 'q' is f32[5,1,300], must have a last dimension of at most 256"},
      {"SoftcapBelowZero", Op::kAttention, scores({.softcap = -1}),
       Attention(10, 4, 2, F32({2, 4, 5})),
       "attention: attribute 'softcap' is -1.000000, must be 0 (no softcap) or more, and finite"},
      {"FewerSlopesThanHeads", Op::kAttention, scores({.alibi_heads = 3}),
       Attention(10, 4, 2, F32({2, 4, 5})),
       "attention: attribute 'alibi_heads' is 3, must be 0 (no ALiBi), or the heads over all "
       "ranks, "
       "of which this one has 4"},
      {"AllDropped", Op::kAttention, scores({.dropout = 1}),
       Attention(10, 4, 2, F32({2, 4, 5}), I32({10, 2})),
       "attention: attribute 'dropout' is 1.000000, must be at least 0 and below 1"},
      {"DroppedWithoutPlaces", Op::kAttention, scores({.dropout = 0.5f}),
       Attention(10, 4, 2, F32({2, 4, 5})),
       "attention: attribute 'dropout' is 0.500000, must be 0 without places"},
      {"PlacesWithoutDropout", Op::kAttention, attention,
       Attention(10, 4, 2, F32({2, 4, 5}), I32({10, 2})),
       "attention: attribute 'dropout' is 0.000000, must be above 0 with places"},
      {"PlacesOfHalfASequence", Op::kAttention, scores({.dropout = 0.5f}),
       Attention(10, 4, 2, F32({2, 4, 5}), I32({5, 2})),
       "attention: operand 'places' is i32[5,2], must have as many rows for each of the 2 "
       "sequences"},
      {"ShardOfAnotherSize",
       Op::kEmbedding,
       EmbeddingAttrs{.shard_rows = 4},
       {I32({2}), F32({5, 3}), kAbsent, F32({2, 3}), kAbsent},
       "embedding: operand 'table' is f32[5,3], must have shard_rows = 4 rows"},
      {"NegativeShard",
       Op::kEmbedding,
       EmbeddingAttrs{.shard_rows = 5, .shard = -1},
       {I32({2}), F32({5, 3}), kAbsent, F32({2, 3}), kAbsent},
       "embedding: attribute 'shard' is -1, must not be negative"},
      {"TooFewPositionsForTheContext",
       Op::kEmbedding,
       EmbeddingAttrs{.sequence = 4, .context = {.ranks = 2}},
       {I32({8}), F32({5, 3}), F32({7, 3}), F32({8, 3}), kAbsent},
       "embedding: operand 'positions' is f32[7,3], must have a row for each of the sequence's 8 "
       "positions"},
      {"TooFewAnglesForTheContext",
       Op::kRope,
       RopeAttrs{.sequence = 2, .context = {.ranks = 3, .index = 1}},
       {F32({2, 1, 6}), F32({5, 6})},
       "rope: operand 'table' is f32[5,6], must have a row for each of the sequence's 6 positions"},
      {"RankBeyondTheContext", Op::kAttentionBlock, block({.ranks = 2, .index = 2}, 0),
       Attention(10, 4, 2, F32({2, 4, 5})),
       "attention_block: attribute 'context.index' is 2, must be 0 to 1, a rank of the context"},
      {"OddZigzag", Op::kAttentionBlock, block({.ranks = 2, .zigzag = true}, 0),
       Attention(10, 4, 2, F32({2, 4, 5})),
       "attention_block: attribute 'sequence' is 5, must be even where the context is in zig-zag"},
      {"StepBeyondTheRing", Op::kAttentionBlock, block({.ranks = 2}, 2),
       Attention(10, 4, 2, F32({2, 4, 5})),
       "attention_block: attribute 'step' is 2, must be 0 to 1, less than context.ranks"},
      {"EndlessSequence", Op::kAttentionBlock, block({.ranks = int64_t{1} << 27}, 0),
       Attention(10, 4, 2, F32({2, 4, 5})),
       "attention_block: attribute 'sequence' is 5, must be at most 2 for 134217728 ranks of a "
       "context"},
      {"BlockIntoBF16",
       Op::kAttentionBlock,
       block({}, 0),
       {BF16({5, 1, 8}), BF16({5, 1, 8}), BF16({5, 1, 8}), BF16({5, 1, 8}), F32({1, 1, 5}), kAbsent,
        kAbsent},
       "attention_block: operand 'o' is bf16[5,1,8], must have f32 elements"},
      {"LogitsOfAnotherWidth",
       Op::kCrossEntropyRows,
       shards,
       {F32({3, 5}), I32({3}), F32({3, 3})},
       "cross_entropy_rows: operand 'logits' is f32[3,5], must have shard_rows = 4 columns"},
      {"TooFewShards",
       Op::kCrossEntropyLoss,
       shards,
       {I32({3}), F32({1, 3, 3}), F32({2}), {}},
       "cross_entropy_loss: operand 'rows' is f32[1,3,3], must come from enough shards of 4 "
       "columns "
       "for the vocabulary of 7"},
      {"ShardThatIsNone",
       Op::kCrossEntropyGrad,
       CrossEntropyAttrs{.shard_rows = 4, .shard = 2, .vocabulary = 7},
       {I32({3}), F32({2, 3, 3}), F32({3, 4}), {}, {}},
       "cross_entropy_grad: attribute 'shard' is 2, must be 0 to 1, one of the shards in 'rows'"},
      {"NoVocabulary",
       Op::kCrossEntropyRows,
       CrossEntropyAttrs{.shard_rows = 4},
       {F32({3, 4}), I32({3}), F32({3, 3})},
       "cross_entropy_rows: attribute 'vocabulary' is 0, must be at least 1"},
      {"NoPermutation",
       Op::kPermute,
       PermuteAttrs{.order = {0, 1, 1, 3}},
       {F32({2, 3, 4, 5}), F32({2, 3, 3, 5})},
       "permute: attribute 'order' is not a permutation, must hold each of 0, 1, 2 and 3 once"},
      {"OtherPermutation",
       Op::kPermute,
       PermuteAttrs{.order = {1, 0, 2, 3}},
       {F32({2, 3, 4, 5}), F32({2, 3, 4, 5})},
       "permute: operand 'y' is f32[2,3,4,5], must have the reordered dimensions [3,2,4,5]"},
      {"NoChunk",
       Op::kLmHeadLoss,
       LossAttrs{},
       {F32({2, 3}), F32({5, 3}), I32({2}), F32({2}), {}},
       "lm_head_loss: attribute 'chunk_rows' is 0, must be at least 1"},
      {"ThreeStatistics",
       Op::kLmHeadLoss,
       LossAttrs{.chunk_rows = 1},
       {F32({2, 3}), F32({5, 3}), I32({2}), F32({3}), {}},
       "lm_head_loss: operand 'stats' is f32[3], must have dimension 0 equal to 2"},
      {"LossesOfOtherRows",
       Op::kLmHeadLoss,
       LossAttrs{.chunk_rows = 1},
       {F32({2, 3}), F32({5, 3}), I32({2}), F32({2}), F32({3})},
       "lm_head_loss: operand 'losses' is f32[3], must have dimension 0 equal to T = 2, as in "
       "'hidden'"},
      {"HalfAPair",
       Op::kPreferenceLoss,
       PreferenceAttrs{.sequence = 4},
       {F32({12}), F32({12}), F32({12}), F32({2}), F32({2})},
       "preference_loss: operand 'losses' is f32[12], must have whole pairs of sequences of 4 "
       "tokens"},
      {"NoBeta",
       Op::kPreferenceLoss,
       PreferenceAttrs{.sequence = 4, .beta = 0},
       {F32({8}), F32({8}), F32({8}), F32({2}), F32({2})},
       "preference_loss: attribute 'beta' is 0.000000, must be above 0"},
      {"HalfOfThePairsTurned",
       Op::kPreferenceLoss,
       PreferenceAttrs{.sequence = 4, .label_smoothing = 0.5f},
       {F32({8}), F32({8}), F32({8}), F32({2}), F32({2})},
       "preference_loss: attribute 'label_smoothing' is 0.500000, must be at least 0 and below "
       "0.5"},
      {"BetaOne", Op::kUpdate, UpdateAttrs{.beta1 = 1}, four,
       "update: attribute 'beta1' is 1.000000, must be at least 0 and below 1"},
      {"MomentsInF16",
       Op::kUpdate,
       UpdateAttrs{},
       {F32({5}), F32({5}), Dense(DType::kF16, {5}), Dense(DType::kF16, {5}), F32({4}), F32({4})},
       "update: operand 'm' is f16[5], must have f32 or bf16 elements"},
      {"MomentsOfTwoTypes",
       Op::kUpdate,
       UpdateAttrs{},
       {F32({5}), F32({5}), BF16({5}), F32({5}), F32({4}), F32({4})},
       "update: operand 'v' is f32[5], must have bf16 elements like the op's others"},
      {"MatrixByARuleOfElements", Op::kUpdateMatrix, UpdateAttrs{.iterations = 5}, matrix,
       "update_matrix: attribute 'rule' is adamw, must be one of whole matrices"},
      {"ElementsByARuleOfMatrices", Op::kUpdate, UpdateAttrs{.rule = OptimizerRule::kMuon}, four,
       "update: attribute 'rule' is muon, must update elements by themselves"},
      {"NoLeastNorm", Op::kUpdateMatrix,
       UpdateAttrs{.rule = OptimizerRule::kMuon, .epsilon = 0, .iterations = 5}, matrix,
       "update_matrix: attribute 'epsilon' is 0.000000, must be above 0"},
      {"NoIterations", Op::kUpdateMatrix, UpdateAttrs{.rule = OptimizerRule::kMuon}, matrix,
       "update_matrix: attribute 'iterations' is 0, must be from 1 to 100"},
      {"StepsOfNoLength", Op::kUpdateMatrix,
       UpdateAttrs{.rule = OptimizerRule::kMuon, .step_scale = 0, .iterations = 5}, matrix,
       "update_matrix: attribute 'step_scale' is 0.000000, must be above 0"},
      {"IterationsOfElements", Op::kUpdate, UpdateAttrs{.iterations = 5}, four,
       "update: attribute 'iterations' is 5, must be 0, step_scale 1 and precision f32"},
      {"IterationsInFp8", Op::kUpdateMatrix,
       UpdateAttrs{
           .rule = OptimizerRule::kMuon, .iterations = 5, .precision = MatmulPrecision::kFP8},
       matrix,
       "update_matrix: attribute 'precision' is fp8, must be another one: only matmul has fp8 "
       "products"},
      {"FactorsByARuleOfElements", Op::kUpdateFactored, UpdateAttrs{}, factored,
       "update_factored: attribute 'rule' is adamw, must keep means of rows and columns"},
      {"ElementsByAFactoredRule", Op::kUpdate, adafactor, four,
       "update: attribute 'rule' is adafactor, must keep no such means"},
      {"ThresholdOfElements", Op::kUpdate, UpdateAttrs{.clip_threshold = 1}, four,
       "update: attribute 'clip_threshold' is 1.000000, must be 0, as least_scale, beta3 and "
       "error_epsilon"},
      {"NothingAddedToSquares", Op::kUpdateFactored,
       UpdateAttrs{.rule = OptimizerRule::kAdafactor, .beta1 = 0, .epsilon = 0}, factored,
       "update_factored: attribute 'epsilon' is 0.000000, must be above 0"},
      {"ErrorsOfAdafactor", Op::kUpdateFactored,
       UpdateAttrs{.rule = OptimizerRule::kAdafactor, .beta1 = 0, .beta3 = 0.5f}, factored,
       "update_factored: attribute 'beta3' is 0.500000, must be 0, and error_epsilon, but for "
       "came"},
      {"ScaleOfCame", Op::kUpdateFactored,
       UpdateAttrs{.rule = OptimizerRule::kCame, .least_scale = 1, .error_epsilon = 1e-16f},
       factored,
       "update_factored: attribute 'least_scale' is 1.000000, must be 0 with the rule came"},
      {"AFirstMomentThatDoesNotDecay",
       Op::kUpdateFactored,
       adafactor,
       {x, x, x, {}, F32({3}), F32({5}), {}, {}, F32({4}), F32({4})},
       "update_factored: operand 'm' is f32[3,5], must be absent for this tensor and rule"},
      {"RowsWithoutColumns",
       Op::kUpdateFactored,
       adafactor,
       {x, x, {}, {}, F32({3}), {}, {}, {}, F32({4}), F32({4})},
       "update_factored: operand 'columns' is absent, must be there"},
      {"AMatrixAsAVector",
       Op::kUpdateFactored,
       adafactor,
       {x, x, {}, x, {}, {}, {}, {}, F32({4}), F32({4})},
       "update_factored: operand 'v' is f32[3,5], must be of one row, or come as means of rows and "
       "columns"},
      {"BlocksWithoutScales", Op::kUpdate, UpdateAttrs{.block = 256}, four,
       "update: attribute 'block' is 256, must be 0 where moments are not in blocks"},
      {"BlockOfNoPowerOfTwo", Op::kUpdateInt8, UpdateAttrs{.block = 48}, int8,
       "update_int8: attribute 'block' is 48, must be a power of two from 16 to 256"},
      {"BlocksOfAnotherFormat",
       Op::kEncodeBlocks,
       BlockAttrs{.format = Format::kInt8},
       {F32({100}), codes, F32({1}), {}},
       "encode_blocks: attribute 'format' is int8, must be int8_linear, int4_linear, fp8 or nf4"},
      {"CodesOfFourBitsOfAnOddNumber",
       Op::kEncodeBlocks,
       BlockAttrs{.format = Format::kInt4Linear},
       {F32({101}), Dense(DType::kU8, {50}), F32({1}), {}},
       "encode_blocks: operand 'codes' is u8[50], must have half a byte for each of the 101 "
       "elements"},
      {"AByteForEachOfFourBits",
       Op::kDecodeBlocks,
       BlockAttrs{.format = Format::kInt4Linear},
       {codes, F32({1}), F32({100})},
       "decode_blocks: operand 'codes' is u8[100], must have half a byte for each of the 100 "
       "elements"},
      {"RunsOfBrokenBlocks",
       Op::kEncodeBlocks,
       BlockAttrs{.block = 16, .runs = 2, .parts = 5},
       {F32({240}), Dense(DType::kU8, {240}), F32({15}), {}},
       "encode_blocks: attribute 'runs' is 2, must cut 240 elements into runs of 5 parts of whole "
       "blocks of 16"},
      {"RunsToDecode",
       Op::kDecodeBlocks,
       BlockAttrs{.block = 64, .runs = 2},
       {codes, F32({2}), F32({100})},
       "decode_blocks: attribute 'runs' is 2, must be 1 but for encode_blocks"},
      {"NoRuns",
       Op::kEncodeBlocks,
       BlockAttrs{.block = 16, .runs = -1},
       {F32({240}), Dense(DType::kU8, {240}), F32({15}), {}},
       "encode_blocks: attribute 'runs' is -1, must be 1 to 240, the number of elements"},
      {"AResidualOfOtherElements",
       Op::kEncodeBlocks,
       BlockAttrs{},
       {F32({100}), codes, F32({1}), F32({99})},
       "encode_blocks: operand 'residual' is f32[99], must have dimension 0 equal to n = 100, as "
       "in 'x'"},
      {"TooFewScalesToDecode",
       Op::kDecodeBlocks,
       BlockAttrs{.block = 64},
       {codes, F32({1}), F32({100})},
       "decode_blocks: operand 'scales' is f32[1], must have a scale for each of the 2 blocks"},
      {"TooFewScalesOfAPart",
       Op::kSumBlocks,
       BlockAttrs{.block = 64},
       {Dense(DType::kU8, {3, 100}), F32({3, 1}), F32({100})},
       "sum_blocks: operand 'scales' is f32[3,1], must have a scale for each of the 2 blocks"},
      {"TooFewScales", Op::kUpdateInt8, UpdateAttrs{.block = 32}, int8,
       "update_int8: operand 'm_scales' is f32[2], must have a scale for each of the 4 blocks"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, BadShapes, testing::ValuesIn(BadCases()),
                         [](const auto& info) { return info.param.name; });

TEST(GoodShapesTest, AColumnSliceOfAWiderBufferIsAccepted) {
  const TensorShape slice = Strided(BF16({10, 4, 8}), 96);
  EXPECT_EQ(CheckShapes(Op::kAttention, AttentionAttrs{.sequence = 5, .scale = 1},
                        std::vector<TensorShape>{slice, slice, slice, BF16({10, 4, 8}),
                                                 F32({2, 4, 5}), kAbsent, kAbsent}),
            "");
}

TEST(GoodShapesTest, AProductMayMixElementTypes) {
  EXPECT_EQ(CheckShapes(Op::kMatmul, MatmulAttrs{.transpose_a = true, .transpose_b = true},
                        Matmul(BF16({3, 2}), F32({5, 3}), BF16({2, 5}))),
            "");
}

TEST(GoodShapesTest, EmbeddingsWithoutPositionsNeedNoSequence) {
  EXPECT_EQ(
      CheckShapes(Op::kEmbedding, EmbeddingAttrs{},
                  std::vector<TensorShape>{I32({7}), F32({5, 3}), kAbsent, BF16({7, 3}), kAbsent}),
      "");
}

}  // namespace
}  // namespace terrace::kernels
