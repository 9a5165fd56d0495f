// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cuda/f16.h"
#include "tests/conformance/op_reference.h"

namespace terrace::kernels::cuda {
namespace {

TEST(BF16Test, RoundsEveryExponentToTheNearestWithTiesToEven) {
  // All upper halves, and lower halves around the tie.
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>(upper << 16 | lower);
      const float rounded = RoundToBF16(value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(rounded)) << std::hex << upper << lower;
      } else if (std::isfinite(rounded)) {
        EXPECT_EQ(rounded, conformance::RoundToBF16(value)) << std::hex << upper << lower;
      } else {
        EXPECT_EQ(std::signbit(rounded), std::signbit(value));
        EXPECT_GT(std::abs(value), 3.3895e38f) << "only what is above the largest overflows";
      }
    }
  }
}

TEST(BF16Test, APairHasItsFirstInTheLowerHalf) { EXPECT_EQ(PackBF16(1.0f, -2.0f), 0xc0003f80u); }

TEST(F16Test, EveryHalfSurvivesTheWayToF32AndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 half = {static_cast<uint16_t>(bits)};
    const float value = ToFloat(half);
    if ((bits & 0x7fff) > 0x7c00) {
      EXPECT_TRUE(std::isnan(value) && std::isnan(RoundToF16(value))) << bits;
    } else {
      EXPECT_EQ(ToF16(value).bits, bits);
    }
  }
  EXPECT_EQ(ToFloat(F16{0x0001}), 0x1p-24f);
  EXPECT_EQ(ToFloat(F16{0x7bff}), 65504.0f);
  EXPECT_EQ(ToFloat(F16{0xfc00}), -std::numeric_limits<float>::infinity());
}

TEST(F16Test, RoundsEveryExponentToTheNearestWithTiesToEven) {
  // All signs, exponents and upper 10 bits of the fraction, and the lower 13 around the tie.
  for (uint32_t upper = 0; upper < (1u << 19); ++upper) {
    for (uint32_t lower : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {
      const float value = std::bit_cast<float>(upper << 13 | lower);
      const float rounded = RoundToF16(value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(rounded)) << std::hex << upper << ' ' << lower;
      } else {
        ASSERT_EQ(rounded, conformance::RoundToF16(value)) << std::hex << upper << ' ' << lower;
      }
    }
  }
}

TEST(F16Test, APairHasItsFirstInTheLowerHalf) {
  EXPECT_EQ(PackPair<F16>(1.0f, -2.0f), 0xc0003c00u);
}

double ExactGelu(double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return x / (1 + std::exp(-2 * u));
}

TEST(MathTest, GeluAndItsSlopeAreExactFromOneEndToTheOther) {
  for (double x = -40; x <= 40; x += 0.0078125) {
    const auto at = static_cast<float>(x);
    const double slope = (ExactGelu(x + 1e-6) - ExactGelu(x - 1e-6)) / 2e-6;
    EXPECT_NEAR(Gelu(at), ExactGelu(x), 3e-7 * (1 + std::abs(x))) << x;
    EXPECT_NEAR(GeluSlope(at), slope, 2e-6) << x;
  }
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(Gelu(kLargest), kLargest);
  EXPECT_EQ(GeluSlope(kLargest), 1);
  EXPECT_NEAR(GeluSlope(-kLargest), 0, 1e-30);
  EXPECT_TRUE(std::isnan(Gelu(NAN)));
  EXPECT_TRUE(std::isnan(GeluSlope(NAN)));
}

TEST(MathTest, GeluByTheErrorFunctionIsExactFromOneEndToTheOther) {
  const auto exact = [](double x) { return x / 2 * std::erfc(-x * std::sqrt(0.5)); };
  for (double x = -40; x <= 40; x += 0.0078125) {
    const ValueAndSlope both = ErfGelu::Both(static_cast<float>(x));
    const double slope = (exact(x + 1e-6) - exact(x - 1e-6)) / 2e-6;
    EXPECT_NEAR(both.value, exact(x), 3e-7 * (1 + std::abs(x))) << x;
    EXPECT_EQ(both.value, ErfGelu::Value(static_cast<float>(x))) << x;
    EXPECT_NEAR(both.slope, slope, 2e-6) << x;
  }
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(ErfGelu::Value(kLargest), kLargest);
  EXPECT_EQ(ErfGelu::Both(kLargest).slope, 1);
  EXPECT_NEAR(ErfGelu::Both(-kLargest).slope, 0, 1e-30);
  EXPECT_TRUE(std::isnan(ErfGelu::Value(NAN)) && std::isnan(ErfGelu::Both(NAN).slope));
}

TEST(MathTest, ReluCutsAndPassesNoNumber) {
  EXPECT_EQ(Relu::Value(2), 2);
  EXPECT_EQ(Relu::Value(-2), 0);
  EXPECT_EQ(Relu::Both(2).slope, 1);
  EXPECT_EQ(Relu::Both(0).slope, 0);
  EXPECT_TRUE(std::isnan(Relu::Value(NAN)) && std::isnan(Relu::Both(NAN).slope));
}

TEST(MathTest, SiluOfLargeGatesIsFinite) {
  EXPECT_EQ(Silu::Value(1e30f), 1e30f);
  EXPECT_EQ(std::abs(Silu::Value(-200)) < 1e-30f, true);
  const ValueAndSlope open = Silu::Both(100);
  EXPECT_FLOAT_EQ(open.slope, 1);
  EXPECT_FLOAT_EQ(open.value, 100);
  EXPECT_NEAR(Silu::Both(-100).slope, 0, 1e-30);
  EXPECT_TRUE(std::isnan(Silu::Value(NAN)));
}

TEST(MathTest, PositionsAreThoseOfTheShareOfTokens) {
  for (int64_t ranks : {1, 2, 3}) {
    for (int64_t index = 0; index < ranks; ++index) {
      for (bool zigzag : {false, true}) {
        const TokenShare share = {.ranks = ranks, .index = index, .zigzag = zigzag};
        const Positions positions = PositionsOf(share, 10);
        for (int64_t row = 0; row < 40; ++row) {
          EXPECT_EQ(positions.Of(row), share.Position(row, 10)) << ranks << index << row;
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace::kernels::cuda
