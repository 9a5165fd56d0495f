// Stochastic rounding: what rounding.h says, and the AdamW of bf16 weights against it, one element
// at a time.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"
#include "tests/unit/kernels/updated_weights.h"

namespace terrace::kernels::cpu {
namespace {

// kat_vectors of Random123 1.14, the authors' own library.
TEST(PhiloxTest, GivesTheAuthorsNumbers) {
  EXPECT_EQ(Philox({{0, 0, 0, 0}}, {{0, 0}}),
            (PhiloxBlock{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox({{kOnes, kOnes, kOnes, kOnes}}, {{kOnes, kOnes}}),
            (PhiloxBlock{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  EXPECT_EQ(Philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}}),
            (PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

float Below(float value) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000u);
}
float Above(float value) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) & 0xffff0000u) + 0x10000u);
}

// All 2^16 draws: the upper neighbour comes as often as the fraction says, so that the mean is the
// number itself, to the last bit.
TEST(StochasticRoundingTest, TheMeanOverAllDrawsIsTheNumber) {
  for (float value :
       {1.0f, 1.0000001f, 1.001f, -0.37f, 3.0e-5f, -123456.7f, 1e-40f, 0x1.fffffep0f}) {
    double sum = 0;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float rounded = RoundStochastically(value, bits);
      ASSERT_TRUE(rounded == Below(value) || rounded == Above(value)) << value << " " << rounded;
      sum += rounded;
    }
    EXPECT_EQ(sum / 0x10000, static_cast<double>(value)) << value;
  }
}

TEST(StochasticRoundingTest, WhatBf16HasStaysAndWhatIsNoNumberStaysNone) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float value : {0.0f, -0.0f, 1.5f, -0x1.fep127f, 0x1p-133f, infinity, -infinity}) {
    for (uint32_t bits : {0u, 1u, 0x8000u, 0xffffu}) {
      EXPECT_EQ(std::bit_cast<uint32_t>(RoundStochastically(value, bits)),
                std::bit_cast<uint32_t>(value));
    }
  }
  for (uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(RoundStochastically(std::bit_cast<float>(nan), 0xffff)));
  }
}

// The bits of many elements: uniform (16 halves of bytes, chi-squared below its 1 - 1e-6 quantile),
// and others for another step, tensor or seed.
TEST(StochasticRoundingTest, BitsAreUniformAndDifferByStepTensorAndSeed) {
  constexpr int64_t kElements = 1 << 16;
  const PhiloxKey key = RoundingKey(7, 11);
  std::map<uint32_t, int64_t> seen;
  int64_t same[3] = {};
  for (int64_t e = 0; e < kElements; ++e) {
    const uint32_t bits = RoundingBits(key, 3, e);
    ++seen[bits >> 12];
    same[0] += bits == RoundingBits(key, 4, e);
    same[1] += bits == RoundingBits(RoundingKey(7, 12), 3, e);
    same[2] += bits == RoundingBits(RoundingKey(8, 11), 3, e);
  }
  double chi = 0;
  for (uint32_t k = 0; k < 16; ++k) {
    const double expected = kElements / 16.0;
    chi += std::pow(static_cast<double>(seen[k]) - expected, 2) / expected;
  }
  EXPECT_LT(chi, 56.5);                             // 15 degrees of freedom
  for (int64_t count : same) EXPECT_LT(count, 12);  // one is expected
}

// ---- the optimizer ------------------------------------------------------------------------------

constexpr int64_t kElements = 5 * 4096 + 77;  // several tiles, and a tail

UpdatedWeights::Backend OnCpu(int threads) {
  return [threads](Op op, const OpAttrs& attrs, const std::vector<TensorView>& operands) {
    return Launch(op, attrs, operands, threads);
  };
}

TEST(AdamwStochasticTest, RoundsWhatF32WeightsWouldBecomeWithTheBitsOfTheirElements) {
  UpdatedWeights weights(kElements, PartsFor(0));
  weights.ExpectStepByTheRules(OnCpu(1));
}

TEST(AdamwStochasticTest, GivesTheSameBitsInPiecesAndWithThreads) {
  UpdatedWeights whole(kElements, PartsFor(0));
  whole.Step(OnCpu(1), 0, kElements);
  for (int threads : {2, 5}) {
    UpdatedWeights together(kElements, PartsFor(0));
    together.Step(OnCpu(threads), 0, kElements);
    EXPECT_EQ(together.param, whole.param);
  }
  UpdatedWeights pieces(kElements, PartsFor(0));
  for (int64_t first : {0, 3, 1030, 1071, 4096, 9999}) {
    const int64_t end = first == 0      ? 3
                        : first == 3    ? 1030
                        : first == 1030 ? 1071
                        : first == 1071 ? 4096
                        : first == 4096 ? 9999
                                        : kElements;
    pieces.SetParts(PartsFor(first));
    pieces.Step(OnCpu(1), first, end - first);
  }
  EXPECT_EQ(pieces.param, whole.param);
}

TEST(AdamwStochasticTest, ASkippedStepChangesNothing) {
  UpdatedWeights weights(kElements, PartsFor(0));
  const std::vector<uint16_t> before = weights.param;
  weights.scale[3] = 1;
  weights.Step(OnCpu(1), 0, kElements);
  EXPECT_EQ(weights.param, before);
}

TEST(AdamwStochasticTest, RefusesToGuessWhoseBitsItTakes) {
  std::vector<float> one(1), four(4);
  std::vector<uint16_t> half(1);
  std::vector<int32_t> step(1);
  const Status status =
      Launch(Op::kUpdateStochastic, UpdateAttrs{},
             {ViewOf(one), ViewOf(DType::kBF16, half.data(), {1}), ViewOf(one), ViewOf(one),
              ViewOf(four), ViewOf(four), ViewOf(DType::kI32, step.data(), {1})});
  EXPECT_EQ(status.message, "update_stochastic: nobody said whose bits it takes");
}

// A step far below half of what bf16 can tell apart: rounded to nearest the weight would never
// move. Over many elements it moves by the step, within six standard errors.
TEST(AdamwStochasticTest, StepsTooSmallForBf16AreNotLost) {
  constexpr int64_t kMany = 1 << 17;
  std::vector<float> grad(kMany, 1.0f), m(kMany), v(kMany), scale = {1, 0, 0, 0};
  std::vector<float> schedule = {2e-4f, 0.1f, 0.05f, 0};  // lr; the first step: m / sqrt(v) is 1
  std::vector<uint16_t> param(kMany, 0x3f80);             // 1.0; its neighbour below is 1 - 2^-8
  std::vector<int32_t> step = {0};
  UpdateAttrs attrs = {.beta1 = 0.9f, .beta2 = 0.95f};
  attrs.rounding.parts = std::make_shared<RoundingParts>(
      RoundingParts{{.rows = 1, .columns = kMany, .row_stride = kMany, .key = RoundingKey(5, 6)}});
  const Status status =
      Launch(Op::kUpdateStochastic, attrs,
             {ViewOf(grad), ViewOf(DType::kBF16, param.data(), {kMany}), ViewOf(m), ViewOf(v),
              ViewOf(scale), ViewOf(schedule), ViewOf(DType::kI32, step.data(), {1})});
  ASSERT_TRUE(status.ok()) << status.message;
  double moved = 0;
  for (uint16_t bits : param) {
    ASSERT_TRUE(bits == 0x3f80 || bits == 0x3f7f) << bits;
    moved += bits == 0x3f7f ? 0x1p-8 : 0;
  }
  const double p = 2e-4 / 0x1p-8;
  const double error = 0x1p-8 * std::sqrt(p * (1 - p) / kMany);
  EXPECT_NEAR(moved / kMany, 2e-4, 6 * error);
}

}  // namespace
}  // namespace terrace::kernels::cpu
