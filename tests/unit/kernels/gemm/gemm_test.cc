// Every path of the matrix product against a double-precision reference.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/unit/kernels/gemm/gemm_case.h"

namespace terrace::kernels::cpu {
namespace {

std::vector<GemmPath> Paths() {
  std::vector<GemmPath> paths = {GemmPath::kVectors};
  for (const GemmPath path : {GemmPath::kBF16Vectors, GemmPath::kAmx}) {
    if (HasGemmPath(path)) paths.push_back(path);
  }
  return paths;
}

constexpr double kF32Epsilon = 0x1p-24, kBF16Epsilon = 0x1p-8;
constexpr double kRoughGate = 4e-6;  // kernels/cpu/gelu-inl.h

// Sums of k products are rounded at most k times; a bf16 result once more. GELU's slope is
// below 1.2.
void ExpectClose(const GemmProblem& p) {
  const std::vector<double> expected = p.Expected(), magnitudes = p.Magnitudes(), sums = p.Sums();
  const double sum_error = kF32Epsilon * (8 + std::sqrt(static_cast<double>(p.problem.k)));
  const double store_error = p.problem.c_type == DType::kBF16 ? kBF16Epsilon : 4 * kF32Epsilon;
  // With aux kept, GELU is taken of what aux holds.
  const bool of_aux = p.problem.aux && p.problem.epilogue == Epilogue::kGelu;
  // The error of a gate is relative to what passes it: where the two terms of GELU's slope cancel,
  // it is not relative to the result.
  const bool rough = p.problem.epilogue != Epilogue::kNone && p.problem.c_type == DType::kBF16;
  for (int64_t i = 0; i < p.problem.m; ++i) {
    for (int64_t j = 0; j < p.problem.n; ++j) {
      const int64_t at = i * p.problem.n + j;
      const double aux_error = of_aux ? store_error * std::abs(p.aux.Get(i, j)) : 0;
      const double allowed = 1.2 * (sum_error * magnitudes[at] + aux_error) +
                             store_error * std::abs(expected[at]) +
                             (rough ? 1.2 * kRoughGate * std::abs(sums[at]) : 0) + 1e-30;
      ASSERT_NEAR(p.c.Get(i, j), expected[at], allowed)
          << p.problem.ToString() << " at " << i << ", " << j;
    }
  }
}

void ExpectRuns(GemmCase problem) {
  for (const GemmPath path : Paths()) {
    problem.path = path;
    GemmProblem p(problem);
    p.Run(2);
    ASSERT_NO_FATAL_FAILURE(ExpectClose(p));
  }
}

TEST(GemmTest, SizesOnBothSidesOfEveryBlockBoundary) {
  const int64_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 65};
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      for (const int64_t k : {int64_t{1}, int64_t{31}, int64_t{33}, int64_t{100}}) {
        for (const MatmulPrecision precision : {MatmulPrecision::kF32, MatmulPrecision::kBF16}) {
          ASSERT_NO_FATAL_FAILURE(ExpectRuns({.m = m, .n = n, .k = k, .precision = precision}));
        }
      }
    }
  }
}

// More chunks than are packed at a time, with C too large to keep all sums cached and small enough
// for it.
TEST(GemmTest, LongSumsCrossEveryCutOfK) {
  for (const int64_t k : {257, 700, 1300, 4000}) {
    for (const MatmulPrecision precision : {MatmulPrecision::kF32, MatmulPrecision::kBF16}) {
      ASSERT_NO_FATAL_FAILURE(ExpectRuns({.m = 65, .n = 100, .k = k, .precision = precision}));
    }
  }
}

TEST(GemmTest, LargeResultsTakeSeveralTurnsOverThePrivateSide) {
  ASSERT_NO_FATAL_FAILURE(
      ExpectRuns({.m = 1500, .n = 40, .k = 70, .precision = MatmulPrecision::kBF16}));
  ASSERT_NO_FATAL_FAILURE(ExpectRuns({.m = 40, .n = 1500, .k = 70}));
}

// 30 x 30 panels keep more sums than two threads cache, so groups of chunks follow each other.
TEST(GemmTest, GroupsOfChunksAreAddedUp) {
  const GemmBlocking cut(kVectorArithmetic, 960, 960, 4000, 1);
  ASSERT_GT(cut.chunks, cut.chunks_at_once);
  ASSERT_GT(cut.chunks_at_once, 1);
  // A full reference would take seconds: a few elements tell.
  for (const GemmPath path : Paths()) {
    GemmProblem p({.m = 960, .n = 960, .k = 4000, .path = path});
    p.Run(1);
    for (int64_t i = 0; i < 960; i += 97) {
      for (int64_t j = 0; j < 960; j += 89) {
        double expected = 0, magnitude = 0;
        for (int64_t k = 0; k < 4000; ++k) {
          expected += p.A(i, k) * p.B(k, j);
          magnitude += std::abs(p.A(i, k) * p.B(k, j));
        }
        ASSERT_NEAR(p.c.Get(i, j), expected, magnitude * kF32Epsilon * 70) << i << ", " << j;
      }
    }
  }
}

TEST(GemmTest, EveryTransposeAndElementType) {
  for (int bits = 0; bits < 64; ++bits) {
    const auto type = [&](int bit) { return (bits >> bit & 1) != 0 ? DType::kBF16 : DType::kF32; };
    ASSERT_NO_FATAL_FAILURE(
        ExpectRuns({.m = 65,
                    .n = 47,
                    .k = 100,
                    .transpose_a = (bits & 1) != 0,
                    .transpose_b = (bits & 2) != 0,
                    .precision = (bits & 4) != 0 ? MatmulPrecision::kBF16 : MatmulPrecision::kF32,
                    .a_type = type(3),
                    .b_type = type(4),
                    .c_type = type(5)}));
  }
}

TEST(GemmTest, Tf32IsF32OnTheCpu) {
  for (const GemmPath path : Paths()) {
    GemmProblem f32({.m = 65, .n = 47, .k = 100, .path = path});
    GemmProblem tf32(
        {.m = 65, .n = 47, .k = 100, .precision = MatmulPrecision::kTF32, .path = path});
    f32.Run(2);
    tf32.Run(2);
    EXPECT_EQ(tf32.c.bytes, f32.c.bytes);
  }
}

TEST(GemmTest, StridedRowsAreNeitherReadNorWrittenBetweenRows) {
  for (int bits = 0; bits < 8; ++bits) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectRuns({.m = 33,
                    .n = 100,
                    .k = 65,
                    .transpose_a = (bits & 1) != 0,
                    .transpose_b = (bits & 2) != 0,
                    .residual = true,
                    .precision = (bits & 4) != 0 ? MatmulPrecision::kBF16 : MatmulPrecision::kF32,
                    .padding = 7}));
  }
  for (const GemmPath path : Paths()) {
    GemmProblem p({.m = 33, .n = 20, .k = 10, .padding = 5, .path = path});
    const std::vector<std::byte> before = p.c.bytes;
    p.Run(2);
    for (int64_t i = 0; i < 33; ++i) {
      const int64_t gap = (i * 25 + 20) * 4;
      EXPECT_TRUE(
          std::equal(before.begin() + gap, before.begin() + gap + 20, p.c.bytes.begin() + gap))
          << i;
    }
  }
}

TEST(GemmTest, EveryEpilogue) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t n : {32, 50}) {
      const GemmCase base{.m = 40, .n = n, .k = 300, .c_type = type};
      for (int bits = 0; bits < 4; ++bits) {
        GemmCase problem = base;
        problem.bias = (bits & 1) != 0;
        problem.residual = (bits & 2) != 0;
        ASSERT_NO_FATAL_FAILURE(ExpectRuns(problem));
        problem.epilogue = Epilogue::kGelu;
        ASSERT_NO_FATAL_FAILURE(ExpectRuns(problem));
        problem.aux = true;
        ASSERT_NO_FATAL_FAILURE(ExpectRuns(problem));
        problem.epilogue = Epilogue::kGeluGrad;
        ASSERT_NO_FATAL_FAILURE(ExpectRuns(problem));
      }
      GemmCase sum = base;
      sum.accumulate = true;
      ASSERT_NO_FATAL_FAILURE(ExpectRuns(sum));
    }
  }
}

TEST(GemmTest, GeluKeepsTheValueBeforeIt) {
  for (const GemmPath path : Paths()) {
    GemmProblem p({.m = 33,
                   .n = 50,
                   .k = 20,
                   .bias = true,
                   .aux = true,
                   .epilogue = Epilogue::kGelu,
                   .path = path});
    p.Run(2);
    for (int64_t i = 0; i < 33; ++i) {
      for (int64_t j = 0; j < 50; ++j) {
        double product = p.bias[j];
        for (int64_t k = 0; k < 20; ++k) product += p.A(i, k) * p.B(k, j);
        EXPECT_NEAR(p.aux.Get(i, j), product, 1e-5);
      }
    }
  }
}

TEST(GemmTest, ResidualMayBeTheMemoryOfC) {
  for (const GemmPath path : Paths()) {
    GemmProblem p({.m = 40, .n = 40, .k = 400, .accumulate = true, .path = path});
    p.Run(2);
    const HostMatrix accumulated = p.c;
    GemmProblem q({.m = 40, .n = 40, .k = 400, .residual = true, .path = path});
    q.residual_is_c = true;
    q.Run(2);
    EXPECT_EQ(q.c.bytes, accumulated.bytes);
  }
}

TEST(GemmTest, ResultsDoNotDependOnTheNumberOfThreads) {
  const GemmCase cases[] = {
      {.m = 500, .n = 300, .k = 900, .bias = true, .epilogue = Epilogue::kGelu},
      {.m = 90, .n = 700, .k = 1500, .accumulate = true},
      {.m = 300, .n = 300, .k = 1200, .precision = MatmulPrecision::kBF16, .c_type = DType::kBF16},
      {.m = 33, .n = 2000, .k = 500, .transpose_b = true, .precision = MatmulPrecision::kBF16},
  };
  for (GemmCase problem : cases) {
    for (const GemmPath path : Paths()) {
      problem.path = path;
      GemmProblem p(problem);
      p.Run(1);
      const std::vector<std::byte> one = p.c.bytes;
      for (const int threads : {2, 3, 7}) {
        p.Run(threads);
        EXPECT_EQ(p.c.bytes, one) << problem.ToString() << ", " << threads << " threads";
      }
    }
  }
}

TEST(GemmTest, MoreThreadsThanPanelsDivideTheOtherSide) {
  for (const GemmPath path : Paths()) {
    GemmProblem p({.m = 64, .n = 64, .k = 4000, .path = path});
    p.Run(7);
    ASSERT_NO_FATAL_FAILURE(ExpectClose(p));
  }
}

TEST(GemmTest, RunGemmTakesAPathThatThisMachineHas) {
  GemmProblem p({.m = 3, .n = 3, .k = 3});
  Gemm gemm{.m = 3, .n = 3, .k = 3, .a = p.a.View(), .b = p.b.View(), .c = p.c.View()};
  alignas(64) static std::byte workspace[1 << 20];
  ASSERT_TRUE(PrepareGemm(2).ok());
  EXPECT_TRUE(RunGemm(gemm, {2, workspace, sizeof(workspace)}).ok());
  ExpectClose(p);
}

}  // namespace
}  // namespace terrace::kernels::cpu
