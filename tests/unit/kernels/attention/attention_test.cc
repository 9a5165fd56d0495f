// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "hwy/targets.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/registry.h"
#include "tests/unit/kernels/attention/attention_case.h"

namespace terrace::kernels {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr MatmulPrecision kFast = MatmulPrecision::kBF16;

class PrepareCpu : public ::testing::Environment {
 public:
  void SetUp() override { ASSERT_EQ(cpu::Prepare(3).message, ""); }
};
const auto* const kPrepared = ::testing::AddGlobalTestEnvironment(new PrepareCpu);

const AttentionShape kShapes[] = {
    {.name = "OneToken", .batch = 2, .sequence = 1, .heads = 2, .kv_heads = 2, .head_dim = 64},
    {.name = "TwoTokens", .sequence = 2, .heads = 1, .kv_heads = 1, .head_dim = 8},
    {.name = "OddSequence", .sequence = 37, .heads = 2, .kv_heads = 2, .head_dim = 64},
    {.name = "OneMoreThanABlock", .sequence = 129, .heads = 1, .kv_heads = 1, .head_dim = 64},
    {.name = "SeveralBlocks",
     .batch = 2,
     .sequence = 300,
     .heads = 3,
     .kv_heads = 3,
     .head_dim = 64},
    {.name = "SeveralChunks", .sequence = 600, .heads = 1, .kv_heads = 1, .head_dim = 32},
    {.name = "Head128", .sequence = 140, .heads = 2, .kv_heads = 2, .head_dim = 128},
    {.name = "Head256", .sequence = 70, .heads = 1, .kv_heads = 1, .head_dim = 256},
    {.name = "Head1", .sequence = 40, .heads = 2, .kv_heads = 1, .head_dim = 1},
    {.name = "Head33", .sequence = 65, .heads = 2, .kv_heads = 2, .head_dim = 33},
    {.name = "Head80", .sequence = 100, .heads = 2, .kv_heads = 2, .head_dim = 80},
    {.name = "GroupedQueries",
     .batch = 2,
     .sequence = 150,
     .heads = 6,
     .kv_heads = 2,
     .head_dim = 64},
    {.name = "OneKvHead", .sequence = 96, .heads = 5, .kv_heads = 1, .head_dim = 48},
    {.name = "Window1", .sequence = 50, .heads = 1, .kv_heads = 1, .head_dim = 64, .window = 1},
    {.name = "Window7", .sequence = 90, .heads = 2, .kv_heads = 1, .head_dim = 64, .window = 7},
    {.name = "Window64",
     .batch = 2,
     .sequence = 333,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 64,
     .window = 64},
    {.name = "Window100Long",
     .sequence = 650,
     .heads = 1,
     .kv_heads = 1,
     .head_dim = 16,
     .window = 100},
    {.name = "WindowBeyondSequence",
     .sequence = 70,
     .heads = 1,
     .kv_heads = 1,
     .head_dim = 64,
     .window = 4096},
};

AttentionShape With(AttentionShape shape, DType dtype, MatmulPrecision precision) {
  shape.dtype = dtype;
  shape.precision = precision;
  return shape;
}

class AttentionShapesTest : public ::testing::TestWithParam<AttentionShape> {};

void ExpectClose(const AttentionCase& problem, const AttentionValues& actual, double bound) {
  const AttentionValues expected = problem.Reference();
  EXPECT_LT(RelativeError(actual.o, expected.o), bound) << "o";
  EXPECT_LT(RelativeError(actual.lse, expected.lse), bound) << "lse";
  EXPECT_LT(RelativeError(actual.dv, expected.dv), bound) << "dv";
  if (problem.shape.sequence == 1 || problem.shape.window == 1) {
    // One key a query: the probability is 1 whatever the score, and its gradient is rounding alone.
    for (double value : actual.dq) EXPECT_LT(std::abs(value), bound * 30);
    for (double value : actual.dk) EXPECT_LT(std::abs(value), bound * 30);
    return;
  }
  EXPECT_LT(RelativeError(actual.dq, expected.dq), bound) << "dq";
  EXPECT_LT(RelativeError(actual.dk, expected.dk), bound) << "dk";
}

TEST_P(AttentionShapesTest, F32MatchesTheDoubleReference) {
  const AttentionCase problem(GetParam());
  ExpectClose(problem, problem.RunKernels(2), 4e-6);
}

// Products of bf16 operands: 2^-9 an operand, averaged over the sum.
TEST_P(AttentionShapesTest, BF16ProductsOfF32StayWithinTwoPercent) {
  const AttentionCase problem(With(GetParam(), DType::kF32, kFast));
  ExpectClose(problem, problem.RunKernels(2), 0.02);
}

TEST_P(AttentionShapesTest, BF16ActivationsStayWithinTwoPercent) {
  const AttentionCase problem(With(GetParam(), kBF16, kFast));
  ExpectClose(problem, problem.RunKernels(2), 0.02);
}

// Outputs are rounded to bf16 (2^-9), and so is the o that the backward pass reads.
TEST_P(AttentionShapesTest, BF16ActivationsWithF32ProductsStayWithinOnePercent) {
  const AttentionCase problem(With(GetParam(), kBF16, MatmulPrecision::kF32));
  ExpectClose(problem, problem.RunKernels(2), 0.01);
}

// The engine that CPUs without AMX use, at every vector width that this CPU can run.
TEST_P(AttentionShapesTest, EveryVectorWidthMatchesTheDoubleReference) {
  const AttentionCase problem(GetParam());
  for (int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    const cpu::AttentionEngine engine = cpu::F32AttentionEngine();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ExpectClose(problem, problem.RunEngine(engine, 2), 4e-6);
  }
}

TEST_P(AttentionShapesTest, ResultsDoNotDependOnTheThreadCount) {
  for (const MatmulPrecision precision : {MatmulPrecision::kF32, kFast}) {
    const AttentionCase problem(With(GetParam(), DType::kF32, precision));
    const AttentionValues one = problem.RunKernels(1);
    for (int threads : {2, 3}) {
      const AttentionValues many = problem.RunKernels(threads);
      EXPECT_EQ(many.o, one.o);
      EXPECT_EQ(many.lse, one.lse);
      EXPECT_EQ(many.dq, one.dq);
      EXPECT_EQ(many.dk, one.dk);
      EXPECT_EQ(many.dv, one.dv);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionShapesTest, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

// d(sum of o * d_o) / d(one input), by central differences of the reference.
double FiniteDifference(AttentionCase problem, std::vector<double> AttentionCase::*input,
                        size_t index) {
  constexpr double kStep = 1e-5;
  const double before = (problem.*input)[index];
  const auto objective = [&](double value) {
    (problem.*input)[index] = value;
    AttentionValues values;
    problem.ReferenceForward(&values);
    double sum = 0;
    for (size_t i = 0; i < values.o.size(); ++i) sum += values.o[i] * problem.d_o[i];
    return sum;
  };
  return (objective(before + kStep) - objective(before - kStep)) / (2 * kStep);
}

TEST(AttentionGradTest, AgreesWithFiniteDifferences) {
  for (int64_t window : {0, 5}) {
    const AttentionCase problem({.name = "small",
                                 .batch = 2,
                                 .sequence = 11,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 6,
                                 .window = window});
    const AttentionValues actual = problem.RunKernels(2);
    for (size_t i = 0; i < problem.q.size(); i += 7) {
      EXPECT_NEAR(actual.dq[i], FiniteDifference(problem, &AttentionCase::q, i), 2e-5) << i;
    }
    for (size_t i = 0; i < problem.k.size(); i += 5) {
      EXPECT_NEAR(actual.dk[i], FiniteDifference(problem, &AttentionCase::k, i), 2e-5) << i;
      EXPECT_NEAR(actual.dv[i], FiniteDifference(problem, &AttentionCase::v, i), 2e-5) << i;
    }
  }
}

TEST(AttentionTest, ScoresInTheThousandsNeitherOverflowNorLoseTheSum) {
  for (const MatmulPrecision precision : {MatmulPrecision::kF32, kFast}) {
    for (const double amplitude : {30.0, 300.0, 3000.0}) {
      AttentionCase problem({.name = "large",
                             .sequence = 200,
                             .heads = 2,
                             .kv_heads = 2,
                             .head_dim = 64,
                             .precision = precision,
                             .amplitude = amplitude});
      std::fill(problem.v.begin(), problem.v.end(), 1.0);
      const AttentionValues values = problem.RunKernels(2);
      for (double o : values.o) ASSERT_NEAR(o, 1.0, precision == kFast ? 0.01 : 1e-5);
      for (const auto* gradient : {&values.dq, &values.dk, &values.dv}) {
        for (double value : *gradient) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST(AttentionTest, AWorkspaceTooSmallAndAScaleOfZeroAreRefused) {
  TensorView rows;
  rows.dims = 3;
  rows.size = {4, 1, 8};
  rows.row_stride = 8;
  const std::vector<TensorView> operands(9, rows);
  const Context nothing{.threads = 1};
  EXPECT_THAT(cpu::Attention(AttentionAttrs{.sequence = 4, .scale = 1}, operands, nothing).message,
              ::testing::HasSubstr("workspace"));
  EXPECT_THAT(cpu::AttentionGrad(AttentionAttrs{.sequence = 4}, operands, nothing).message,
              ::testing::HasSubstr("scale"));
}

TEST(AttentionTest, LaterTokensDoNotReachEarlierOnes) {
  for (const MatmulPrecision precision : {MatmulPrecision::kF32, kFast}) {
    const AttentionShape shape{.name = "causal",
                               .sequence = 150,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .precision = precision};
    AttentionCase problem(shape);
    const AttentionValues before = problem.RunKernels(1);
    constexpr int64_t kChanged = 77;
    for (int64_t i = kChanged * 64; i < 150 * 64; ++i) {
      problem.q[i] *= -3;
      problem.k[i] *= 100;
      problem.v[i] = 1e20;
    }
    const AttentionValues after = problem.RunKernels(1);
    EXPECT_TRUE(std::equal(before.o.begin(), before.o.begin() + kChanged * 64, after.o.begin()));
    EXPECT_TRUE(std::equal(before.lse.begin(), before.lse.begin() + kChanged, after.lse.begin()));
  }
}

TEST(AttentionTest, ANotANumberInAKeyReachesEveryQueryThatSeesIt) {
  for (const MatmulPrecision precision : {MatmulPrecision::kF32, kFast}) {
    AttentionCase problem({.name = "nan",
                           .sequence = 100,
                           .heads = 1,
                           .kv_heads = 1,
                           .head_dim = 64,
                           .precision = precision});
    problem.k[40 * 64] = NAN;
    const AttentionValues values = problem.RunKernels(1);
    for (int64_t t = 40; t < 100; ++t) EXPECT_TRUE(std::isnan(values.o[t * 64])) << t;
  }
}

// Whatever is not rounded to bf16 may be kept in three parts.
TEST(AttentionWorkspaceTest, OnlyBF16TakesLess) {
  const auto bytes = [](MatmulPrecision precision) {
    const AttentionAttrs attrs = {.sequence = 256, .scale = 1, .precision = precision};
    return AttentionScratchSizes(Op::kAttentionGrad, attrs, 64).bytes;
  };
  EXPECT_LT(bytes(MatmulPrecision::kBF16), bytes(MatmulPrecision::kF32));
  EXPECT_EQ(bytes(MatmulPrecision::kTF32), bytes(MatmulPrecision::kF32));
}

}  // namespace
}  // namespace terrace::kernels
