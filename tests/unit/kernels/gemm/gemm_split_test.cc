// f32 products must be as exact as plain f32 arithmetic on every path, also where AMX multiplies
// bf16 parts.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/unit/kernels/gemm/gemm_case.h"

namespace terrace::kernels::cpu {
namespace {

struct Errors {
  double frobenius = 0;  // relative
  double largest = 0;    // of an element, relative to the sum of |a b|
};

Errors ErrorsOf(const GemmProblem& p, const std::function<double(int64_t)>& result) {
  const std::vector<double> expected = p.Expected(), magnitudes = p.Magnitudes();
  double squares = 0, total = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = result(static_cast<int64_t>(i)) - expected[i];
    squares += error * error;
    total += expected[i] * expected[i];
    if (magnitudes[i] > 0) largest = std::max(largest, std::abs(error) / magnitudes[i]);
  }
  return {std::sqrt(squares / total), largest};
}

class SplitTest : public testing::TestWithParam<GemmPath> {
 protected:
  void SetUp() override {
    if (!HasGemmPath(GetParam())) GTEST_SKIP() << "this machine has no such path";
  }

  // Both errors of ours are at most those of one long chain of fused multiply-adds; where ours are
  // f32 products too, only in another order, chance decides which are larger.
  void ExpectNoWorseThanF32(int64_t k, const std::function<float()>& a,
                            const std::function<float()>& b) {
    GemmProblem p({.m = 70, .n = 65, .k = k, .transpose_b = true, .path = GetParam()});
    p.a.Fill(a);
    p.b.Fill(b);
    p.Run(2);
    const std::vector<double> plain = p.PlainF32();
    const Errors ours = ErrorsOf(p, [&](int64_t i) { return p.c.Get(i / 65, i % 65); });
    const Errors theirs = ErrorsOf(p, [&](int64_t i) { return plain[i]; });
    const double slack = GetParam() == GemmPath::kAmx ? 1 : 1.3;
    EXPECT_LE(ours.frobenius, slack * theirs.frobenius) << "k " << k;
    EXPECT_LE(ours.largest, slack * theirs.largest) << "k " << k;
  }

  std::mt19937_64 random_{11};
};

TEST_P(SplitTest, NormalNumbers) {
  std::normal_distribution<float> normal;
  const auto next = [&] { return normal(random_); };
  for (const int64_t k : {64, 384, 768, 2048}) ExpectNoWorseThanF32(k, next, next);
}

TEST_P(SplitTest, PositiveNumbersWhoseSumsOnlyGrow) {
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  const auto next = [&] { return uniform(random_); };
  for (const int64_t k : {384, 2048}) ExpectNoWorseThanF32(k, next, next);
}

TEST_P(SplitTest, NumbersOfVeryDifferentSizes) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-20, 20);
  const auto next = [&] { return std::ldexp(normal(random_), exponent(random_)); };
  ExpectNoWorseThanF32(768, next, next);
}

TEST_P(SplitTest, SumsThatCancel) {
  std::normal_distribution<float> normal;
  // Neighbours in K are nearly opposite on one side and equal on the other: what is left is 1e-4 of
  // the terms.
  int i = 0, j = 0;
  float a = 0, b = 0;
  const auto next_a = [&] {
    return a = i++ % 2 == 0 ? normal(random_) : -a * (1 + 1e-4f * normal(random_));
  };
  const auto next_b = [&] { return b = j++ % 2 == 0 ? normal(random_) : b; };
  ExpectNoWorseThanF32(768, next_a, next_b);
}

TEST_P(SplitTest, LargeAndSmallScales) {
  std::normal_distribution<float> normal;
  for (const float scale : {1e15f, 1e-12f}) {
    const auto next = [&] { return scale * normal(random_); };
    ExpectNoWorseThanF32(384, next, next);
  }
}

// Beyond the range in which parts are normal numbers the error is small absolutely.
TEST_P(SplitTest, TinyNumbersAreOffByNextToNothing) {
  std::normal_distribution<float> normal;
  GemmProblem p({.m = 33, .n = 33, .k = 64, .path = GetParam()});
  p.a.Fill([&] { return 1e-37f * normal(random_); });
  p.b.Fill([&] { return normal(random_); });
  p.Run(1);
  const std::vector<double> expected = p.Expected();
  for (int64_t i = 0; i < 33; ++i) {
    for (int64_t j = 0; j < 33; ++j)
      EXPECT_NEAR(p.c.Get(i, j), expected[i * 33 + j], 64 * 0x1p-122);
  }
}

TEST_P(SplitTest, TheLargestNumbersStayFinite) {
  const float huge = std::numeric_limits<float>::max();
  GemmProblem p({.m = 2, .n = 2, .k = 2, .path = GetParam()});
  p.a.Fill([&] { return huge; });
  int i = 0;
  p.b.Fill([&] { return i++ < 2 ? 0.75f : -0.5f; });
  p.Run(1);
  for (int64_t at = 0; at < 4; ++at) EXPECT_FLOAT_EQ(p.c.Get(at / 2, at % 2), huge * 0.25f);
}

TEST_P(SplitTest, NotANumberAndInfinityAreNotLost) {
  for (const float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const MatmulPrecision precision : {MatmulPrecision::kF32, MatmulPrecision::kBF16}) {
      GemmProblem p({.m = 40, .n = 40, .k = 50, .precision = precision, .path = GetParam()});
      p.a.Set(17, 33, bad);
      p.Run(1);
      for (int64_t i = 0; i < 40; ++i) {
        for (int64_t j = 0; j < 40; ++j)
          EXPECT_EQ(std::isfinite(p.c.Get(i, j)), i != 17) << i << ", " << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, SplitTest, testing::Values(GemmPath::kVectors, GemmPath::kAmx),
                         [](const testing::TestParamInfo<GemmPath>& info) {
                           return info.param == GemmPath::kAmx ? "Amx" : "Vectors";
                         });

}  // namespace
}  // namespace terrace::kernels::cpu
