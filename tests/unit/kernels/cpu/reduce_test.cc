// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

// `factor` 0: there is no schedule.
std::vector<float> GradScaleOf(std::vector<float> squares, std::vector<float> total, float clip,
                               float factor = 0) {
  std::vector<float> out(4, -1.0f), schedule = {NAN, NAN, NAN, factor};
  EXPECT_TRUE(Launch(Op::kGradScale, ClipAttrs{.clip_grad_norm = clip},
                     {ViewOf(squares), ViewOf(total), ViewOf(out),
                      factor == 0 ? TensorView() : ViewOf(schedule)})
                  .ok());
  return out;
}

TEST(GradScaleTest, WhatGradientsWereMultipliedByComesOffAgain) {
  for (const float clip : {0.0f, 0.25f, 1.0f}) {
    const std::vector<float> plain = GradScaleOf({9, 16}, {30, 10}, clip);
    std::vector<float> scaled = GradScaleOf({9 * 64 * 64, 16 * 64 * 64}, {30, 10}, clip, 64);
    scaled[0] *= 64;
    EXPECT_EQ(scaled, plain) << clip;
  }
  EXPECT_EQ(GradScaleOf({9, INFINITY}, {30, 10}, 1, 64)[3], 1) << "an overflow skips the step";
}

TEST(GradScaleTest, DividesByTheTokensAndClips) {
  // The norm of the summed gradient is 5, of the mean one 0.5.
  EXPECT_EQ(GradScaleOf({9, 16}, {30, 10}, 0), (std::vector<float>{0.1f, 0.5f, 3, 0}));
  EXPECT_EQ(GradScaleOf({9, 16}, {30, 10}, 1), (std::vector<float>{0.1f, 0.5f, 3, 0}));
  EXPECT_EQ(GradScaleOf({9, 16}, {30, 10}, 0.25f), (std::vector<float>{0.05f, 0.5f, 3, 0}));
}

TEST(GradScaleTest, SkipsWhereTheGradientIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::infinity(), NAN}) {
    const std::vector<float> out = GradScaleOf({1, bad}, {30, 10}, 1);
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(out[3], 1);
  }
}

TEST(GradScaleTest, SkipsWhereThereAreNoTokens) {
  const std::vector<float> out = GradScaleOf({0}, {0, 0}, 1);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[3], 1);
}

TEST(GradScaleTest, AGradientOfZerosIsNoReasonToSkip) {
  EXPECT_EQ(GradScaleOf({0}, {20, 10}, 1), (std::vector<float>{0.1f, 0, 2, 0}));
}

TEST(SquaredNormTest, KeepsItsPrecisionOverMillions) {
  // A plain f32 sum of these stops growing at 2^24.
  std::vector<float> x(20'000'003, 1.0f), out(1);
  ASSERT_TRUE(Launch(Op::kSquaredNorm, ScaleAttrs{}, {ViewOf(x), ViewOf(out)}, 2).ok());
  EXPECT_EQ(out[0], 20'000'003.0f);
}

TEST(SquaredNormTest, OverflowsToInfinityAndNotToNonsense) {
  std::vector<float> x(1000, 1e30f), out(1);
  ASSERT_TRUE(Launch(Op::kSquaredNorm, ScaleAttrs{}, {ViewOf(x), ViewOf(out)}).ok());
  EXPECT_TRUE(std::isinf(out[0]));
}

TEST(BiasGradTest, SumsManyRowsPrecisely) {
  constexpr int64_t kRows = 100'000, kColumns = 3;
  std::vector<float> dy(kRows * kColumns, 0.1f), dbias(kColumns);
  ASSERT_TRUE(Launch(Op::kBiasGrad, AccumulateAttrs{},
                     {ViewOf(DType::kF32, dy.data(), {kRows, kColumns}), ViewOf(dbias)})
                  .ok());
  for (float sum : dbias) EXPECT_NEAR(sum, 1e4, 1e4 * 3e-6);
}

}  // namespace
}  // namespace terrace::kernels::cpu
