// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/op.h"

namespace terrace::kernels {
namespace {

using Operands = std::vector<TensorShape>;

TensorShape Dense(DType dtype, std::vector<int64_t> sizes) {
  TensorShape shape = {.dtype = dtype, .dims = static_cast<int>(sizes.size())};
  for (size_t d = 0; d < sizes.size(); ++d) shape.size[d] = sizes[d];
  shape.row_stride = shape.RowElements();
  return shape;
}
TensorShape F32(std::vector<int64_t> sizes) { return Dense(DType::kF32, std::move(sizes)); }
const TensorShape kAbsent;

TEST(FlopsTest, AProductCountsTwoForEachMultiplyAdd) {
  const Operands plain = {F32({7, 3}), F32({7, 5}), F32({3, 5}), kAbsent, kAbsent, kAbsent};
  EXPECT_EQ(Flops(Op::kMatmul, MatmulAttrs{.transpose_a = true}, plain), 2 * 3 * 5 * 7);
  Operands with_bias = plain;
  with_bias[3] = F32({5});
  EXPECT_EQ(Flops(Op::kMatmul, MatmulAttrs{.transpose_a = true}, with_bias), 2 * 3 * 5 * 7 + 3 * 5);
}

// Counts the visible pairs one by one.
int64_t AttentionByCounting(int64_t sequence, int64_t window, int64_t sequences_times_heads,
                            int64_t head_dim) {
  int64_t pairs = 0;
  for (int64_t q = 0; q < sequence; ++q) {
    for (int64_t k = 0; k <= q; ++k) pairs += window == 0 || q - k < window ? 1 : 0;
  }
  return sequences_times_heads * pairs * head_dim * 4;
}

TEST(FlopsTest, CausalAttentionCountsThePairsThatAreVisible) {
  const TensorShape q = F32({20, 6, 8});
  const TensorShape k = F32({20, 2, 8});
  const Operands operands = {q, k, k, q, F32({2, 6, 10})};
  for (int64_t window : {0, 1, 3, 10, 50}) {
    const AttentionAttrs attrs = {.sequence = 10, .window = window, .scale = 1};
    EXPECT_EQ(Flops(Op::kAttention, attrs, operands), AttentionByCounting(10, window, 2 * 6, 8))
        << window;
  }
}

TEST(FlopsTest, TheGradientOfTheLossIsThreeProducts) {
  const Operands forward = {F32({4, 3}), F32({5, 3}), Dense(DType::kI32, {4}), F32({2}), {}};
  Operands backward(forward.begin(), forward.end() - 1);
  backward.push_back(F32({4, 3}));
  backward.push_back(F32({5, 3}));
  backward.push_back({});  // no schedule
  backward.push_back({});  // no weights
  EXPECT_EQ(Flops(Op::kLmHeadLoss, LossAttrs{.chunk_rows = 2}, forward), 2 * 4 * 3 * 5);
  EXPECT_EQ(Flops(Op::kLmHeadLossGrad, LossAttrs{.chunk_rows = 2}, backward), 3 * 2 * 4 * 3 * 5);
}

// Of one sequence of `ranks` * 6 tokens on a rank that holds 6, one head of 8.
int64_t BlockFlops(TokenShare share, int64_t step, int64_t window = 0) {
  const TensorShape x = F32({6, 1, 8});
  const AttentionBlockAttrs attrs = {
      .sequence = 6, .window = window, .scale = 1, .context = share, .step = step};
  return Flops(Op::kAttentionBlock, attrs, Operands{x, x, x, x, F32({1, 1, 6})});
}

TEST(FlopsTest, RotationCountsThePartThatIsRotated) {
  const Operands whole = {F32({6, 2, 8}), F32({6, 8})}, part = {F32({6, 2, 8}), F32({6, 2})};
  EXPECT_EQ(Flops(Op::kRope, RopeAttrs{.sequence = 6}, whole), 3 * 6 * 2 * 8);
  EXPECT_EQ(Flops(Op::kRope, RopeAttrs{.sequence = 6}, part), 3 * 6 * 2 * 2);
  EXPECT_EQ(BytesMoved(Op::kRope, RopeAttrs{.sequence = 6}, part), 4 * (2 * 6 * 2 * 2 + 6 * 2));
}

TEST(FlopsTest, ABlockCountsThePairsThatSeeEachOther) {
  constexpr int64_t kPair = 2 * 2 * 8;
  EXPECT_EQ(BlockFlops({}, 0), 21 * kPair);
  EXPECT_EQ(BlockFlops({.ranks = 3, .index = 2}, 0), 21 * kPair);
  EXPECT_EQ(BlockFlops({.ranks = 3, .index = 2}, 1), 36 * kPair);
  EXPECT_EQ(BlockFlops({.ranks = 3, .index = 0}, 1), 0);
  // A window of 4 reaches 3 keys back: the first three queries see 3, 2 and 1 of the piece before.
  EXPECT_EQ(BlockFlops({.ranks = 3, .index = 2}, 1, 4), 6 * kPair);
  EXPECT_EQ(BlockFlops({.ranks = 3, .index = 2}, 2, 4), 0);
}

TEST(FlopsTest, ZigzagGivesEveryRankTheSame) {
  constexpr int64_t kPair = 2 * 2 * 8;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const TokenShare share = {.ranks = 4, .index = rank, .zigzag = true};
    EXPECT_EQ(BlockFlops(share, 0), (6 + 6 + 9) * kPair) << rank;
    for (int64_t step : {1, 2, 3}) EXPECT_EQ(BlockFlops(share, step), 18 * kPair) << rank;
  }
}

TEST(FlopsTest, TheBlocksOfARingAreTheWholeAttention) {
  for (int64_t window : {0, 1, 5, 9, 100}) {
    for (bool zigzag : {false, true}) {
      int64_t sum = 0;
      for (int64_t rank = 0; rank < 4; ++rank) {
        for (int64_t step = 0; step < 4; ++step) {
          sum += BlockFlops({.ranks = 4, .index = rank, .zigzag = zigzag}, step, window);
        }
      }
      const TensorShape x = F32({24, 1, 8});
      const AttentionAttrs whole = {.sequence = 24, .window = window, .scale = 1};
      EXPECT_EQ(sum, Flops(Op::kAttention, whole, Operands{x, x, x, x, F32({1, 1, 24})}));
    }
  }
}

// Five times X X', its square, and that times X; and twelve operations an element.
TEST(FlopsTest, AMatrixIsIteratedOnFromItsShorterSide) {
  const UpdateAttrs muon = {.rule = OptimizerRule::kMuon, .iterations = 5};
  for (const TensorShape& x : {F32({10, 100}), F32({100, 10})}) {
    EXPECT_EQ(Flops(Op::kUpdateMatrix, muon, Operands{x, x, x, kAbsent, F32({4}), F32({4})}),
              5 * (2 * 10 * 10 * 100 + 2 * 10 * 10 * 10 + 2 * 10 * 10 * 100) + 12 * 1000);
  }
}

TEST(FlopsTest, AFactoredRuleTakesTheSameOfEachElement) {
  const TensorShape x = F32({10, 100}), rows = F32({10}), columns = F32({100}), four = F32({4});
  const UpdateAttrs attrs = {.rule = OptimizerRule::kAdafactor, .beta1 = 0};
  EXPECT_EQ(Flops(Op::kUpdateFactored, attrs,
                  Operands{x, x, kAbsent, kAbsent, rows, columns, kAbsent, kAbsent, four, four}),
            20 * 1000);
}

TEST(BytesMovedTest, AdamwMovesTwentyEightBytesAParameter) {
  const TensorShape x = F32({1000});
  EXPECT_EQ(BytesMoved(Op::kUpdate, UpdateAttrs{}, Operands{x, x, x, x, F32({4}), F32({4})}),
            28 * 1000 + 32);
}

TEST(BytesMovedTest, AccumulationCountsTwiceAndGapsNotAtAll) {
  TensorShape dy = Dense(DType::kBF16, {10, 8});
  dy.row_stride = 100;
  const Operands operands = {dy, F32({8})};
  EXPECT_EQ(BytesMoved(Op::kBiasGrad, AccumulateAttrs{}, operands), 10 * 8 * 2 + 8 * 4);
  EXPECT_EQ(BytesMoved(Op::kBiasGrad, AccumulateAttrs{.accumulate = true}, operands),
            10 * 8 * 2 + 2 * 8 * 4);
}

TEST(BytesMovedTest, ALargeTableIsReadOnlyWhereItIsLookedUp) {
  const Operands operands = {Dense(DType::kI32, {4}), F32({50000, 16}), kAbsent, F32({4, 16})};
  EXPECT_EQ(BytesMoved(Op::kEmbedding, EmbeddingAttrs{}, operands), 4 * 4 + 2 * 4 * 16 * 4);
}

TEST(WorkspaceBytesTest, OfSumsOverRowsDoesNotDependOnTheThreads) {
  const TensorShape x = F32({5000, 200});
  const TensorShape v = F32({200});
  const TensorShape statistic = F32({5000});
  const Operands operands = {x, x, v, statistic, statistic, kAbsent, x, v, v};
  const int64_t bytes = WorkspaceBytes(Op::kLayerNormGrad, NormAttrs{}, operands, 1);
  EXPECT_GT(bytes, 0);
  EXPECT_LE(bytes, 2 * 64 * 208 * 4);  // at most 64 blocks of two padded vectors
  EXPECT_EQ(WorkspaceBytes(Op::kLayerNormGrad, NormAttrs{}, operands, 64), bytes);
}

TEST(WorkspaceBytesTest, ElementwiseOpsNeedNone) {
  const TensorShape x = F32({300, 200});
  EXPECT_EQ(WorkspaceBytes(Op::kGelu, ActivationAttrs{}, Operands{x, x}, 8), 0);
  EXPECT_EQ(WorkspaceBytes(Op::kSwiglu, ActivationAttrs{Activation::kSilu}, Operands{x, x, x}, 8),
            0);
}

}  // namespace
}  // namespace terrace::kernels
