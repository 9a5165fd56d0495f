// Attention over keys that are split over ranks: the union of the steps of a ring is attention over
// the whole sequence, forward and backward.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hwy/targets.h"
#include "kernels/cpu/attention.h"
#include "tests/unit/kernels/attention/attention_ring.h"

namespace terrace::kernels {
namespace {

constexpr MatmulPrecision kFast = MatmulPrecision::kBF16;

struct RingCase {
  AttentionShape shape;
  Ring ring;
};

std::string NameOf(const testing::TestParamInfo<RingCase>& info) {
  const RingCase& c = info.param;
  return c.shape.name + "On" + std::to_string(c.ring.ranks) + (c.ring.zigzag ? "Zigzag" : "");
}

std::vector<RingCase> Cases() {
  const AttentionShape shapes[] = {
      {.name = "OneTokenAPiece",
       .batch = 2,
       .sequence = 24,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 8},
      {.name = "OddPieces", .batch = 2, .sequence = 888, .heads = 2, .kv_heads = 2, .head_dim = 33},
      {.name = "Grouped", .sequence = 384, .heads = 4, .kv_heads = 2, .head_dim = 64},
      {.name = "Window7", .sequence = 240, .heads = 2, .kv_heads = 1, .head_dim = 16, .window = 7},
      {.name = "Window100",
       .batch = 2,
       .sequence = 600,
       .heads = 2,
       .kv_heads = 2,
       .head_dim = 32,
       .window = 100},
      {.name = "WindowBeyondAPiece",
       .sequence = 480,
       .heads = 1,
       .kv_heads = 1,
       .head_dim = 64,
       .window = 170},
  };
  std::vector<RingCase> cases;
  for (const AttentionShape& shape : shapes) {
    for (int64_t ranks : {2, 3, 4}) {
      for (bool zigzag : {false, true}) cases.push_back({shape, {ranks, zigzag}});
    }
  }
  const AttentionShape chunks = {
      .name = "SeveralChunks", .sequence = 2600, .heads = 1, .kv_heads = 1, .head_dim = 16};
  cases.push_back({chunks, {2, false}});
  cases.push_back({chunks, {2, true}});
  return cases;
}

void ExpectClose(const AttentionValues& actual, const AttentionValues& expected, double bound) {
  EXPECT_LT(RelativeError(actual.o, expected.o), bound) << "o";
  EXPECT_LT(RelativeError(actual.lse, expected.lse), bound) << "lse";
  EXPECT_LT(RelativeError(actual.dv, expected.dv), bound) << "dv";
  EXPECT_LT(RelativeError(actual.dq, expected.dq), bound) << "dq";
  EXPECT_LT(RelativeError(actual.dk, expected.dk), bound) << "dk";
}

class AttentionRingTest : public testing::TestWithParam<RingCase> {};

TEST_P(AttentionRingTest, F32IsAttentionOverTheWholeSequence) {
  const AttentionCase whole(GetParam().shape);
  ExpectClose(RunRing(whole, GetParam().ring, 2), whole.Reference(), 4e-6);
}

TEST_P(AttentionRingTest, BF16StaysWithinTwoPercent) {
  AttentionShape shape = GetParam().shape;
  shape.dtype = DType::kBF16;
  shape.precision = kFast;
  const AttentionCase whole(shape);
  ExpectClose(RunRing(whole, GetParam().ring, 2), whole.Reference(), 0.02);
}

TEST_P(AttentionRingTest, ResultsDoNotDependOnTheThreadCount) {
  const AttentionCase whole(GetParam().shape);
  const AttentionValues one = RunRing(whole, GetParam().ring, 1);
  const AttentionValues three = RunRing(whole, GetParam().ring, 3);
  EXPECT_EQ(three.o, one.o);
  EXPECT_EQ(three.lse, one.lse);
  EXPECT_EQ(three.dq, one.dq);
  EXPECT_EQ(three.dk, one.dk);
  EXPECT_EQ(three.dv, one.dv);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionRingTest, testing::ValuesIn(Cases()), NameOf);

// The engine that CPUs without AMX use, at every vector width that this CPU can run.
TEST(AttentionBlockTest, EveryVectorWidthIsRight) {
  const AttentionCase whole({.name = "small",
                             .batch = 2,
                             .sequence = 296,
                             .heads = 2,
                             .kv_heads = 1,
                             .head_dim = 24,
                             .window = 90});
  const AttentionValues expected = whole.Reference();
  for (int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    const cpu::AttentionEngine engine = cpu::F32AttentionEngine();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (bool zigzag : {false, true}) {
      ExpectClose(RunRing(whole, {4, zigzag}, engine, 2), expected, 4e-6);
    }
  }
}

TEST(AttentionBlockTest, OneRankComputesTheBitsOfWholeAttention) {
  for (const MatmulPrecision precision : {MatmulPrecision::kF32, kFast}) {
    for (const bool zigzag : {false, true}) {
      const AttentionCase whole({.name = "whole",
                                 .batch = 2,
                                 .sequence = 250,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 40,
                                 .window = 130,
                                 .precision = precision});
      const AttentionValues want = whole.RunKernels(2);
      const AttentionValues got = RunRing(whole, {1, zigzag}, 2);
      EXPECT_EQ(got.o, want.o);
      EXPECT_EQ(got.lse, want.lse);
      EXPECT_EQ(got.dq, want.dq);
      EXPECT_EQ(got.dk, want.dk);
      EXPECT_EQ(got.dv, want.dv);
    }
  }
}

TEST(AttentionBlockTest, LargeScoresNeitherOverflowNorLoseTheSum) {
  for (const double amplitude : {30.0, 300.0}) {
    AttentionCase whole({.name = "large",
                         .sequence = 240,
                         .heads = 2,
                         .kv_heads = 2,
                         .head_dim = 64,
                         .amplitude = amplitude});
    std::fill(whole.v.begin(), whole.v.end(), 1.0);
    const AttentionValues values = RunRing(whole, {4, true}, 2);
    for (double o : values.o) ASSERT_NEAR(o, 1.0, 1e-3);
    for (const auto* gradient : {&values.dq, &values.dk, &values.dv}) {
      for (double value : *gradient) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

// Runs one block whose queries, at the start of the sequence, come before all of its keys.
struct BlindBlock {
  explicit BlindBlock(bool accumulate) {
    const auto view = [](std::vector<float>* data, std::array<int64_t, 4> size) {
      TensorView v;
      v.dims = 3;
      v.size = size;
      v.row_stride = size[1] * size[2];
      v.data = data->data();
      return v;
    };
    const AttentionBlockAttrs attrs = {.sequence = 4,
                                       .scale = 1,
                                       .context = {.ranks = 2, .index = 0},
                                       .step = 1,
                                       .accumulate = accumulate,
                                       .accumulate_keys = accumulate};
    std::vector<TensorView> operands = {view(&ones, {4, 1, 8}), view(&ones, {4, 1, 8}),
                                        view(&ones, {4, 1, 8}), view(&o, {4, 1, 8}),
                                        view(&lse, {1, 1, 4})};
    Launch(attrs, operands, cpu::RunAttentionBlock, Op::kAttentionBlock);
    operands.push_back(view(&ones, {4, 1, 8}));
    for (auto* output : {&dq, &dk, &dv}) operands.push_back(view(output, {4, 1, 8}));
    Launch(attrs, operands, cpu::RunAttentionBlockGrad, Op::kAttentionBlockGrad);
  }
  template <typename Kernel>
  static void Launch(const AttentionBlockAttrs& attrs, const std::vector<TensorView>& operands,
                     const Kernel& kernel, Op op) {
    const std::vector<TensorShape> shapes(operands.begin(), operands.end());
    EXPECT_EQ(Flops(op, attrs, shapes), 0);
    std::vector<std::byte> memory(WorkspaceBytes(op, attrs, shapes, 1));
    const Context context = {.threads = 1,
                             .workspace = memory.data(),
                             .workspace_bytes = static_cast<int64_t>(memory.size())};
    EXPECT_EQ(kernel(cpu::F32AttentionEngine(), attrs, operands, context).message, "");
  }

  std::vector<float> ones = std::vector<float>(32, 1.0f), o = std::vector<float>(32, 5.0f);
  std::vector<float> lse = std::vector<float>(4, 2.0f);
  std::vector<float> dq = o, dk = o, dv = o;
};

TEST(AttentionBlockTest, QueriesThatSeeNoKeyLeaveZerosAndMinusInfinity) {
  const BlindBlock block(/*accumulate=*/false);
  const std::vector<float> zeros(32, 0.0f);
  EXPECT_EQ(block.o, zeros);
  EXPECT_EQ(block.lse, std::vector<float>(4, -INFINITY));
  EXPECT_EQ(block.dq, zeros);
  EXPECT_EQ(block.dk, zeros);
  EXPECT_EQ(block.dv, zeros);
}

TEST(AttentionBlockTest, QueriesThatSeeNoKeyKeepWhatTheyHave) {
  const BlindBlock block(/*accumulate=*/true);
  const std::vector<float> before(32, 5.0f);
  EXPECT_EQ(block.o, before);
  EXPECT_EQ(block.lse, std::vector<float>(4, 2.0f));
  EXPECT_EQ(block.dq, before);
  EXPECT_EQ(block.dk, before);
  EXPECT_EQ(block.dv, before);
}

}  // namespace
}  // namespace terrace::kernels
