// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "hwy/highway.h"
#include "kernels/half.h"
#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

std::vector<uint16_t> ToBF16(std::vector<float> x) {
  std::vector<uint16_t> y(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  EXPECT_TRUE(Launch(Op::kCast, NoAttrs{}, {ViewOf(x), ViewOf(DType::kBF16, y.data(), {n})}).ok());
  return y;
}

float FromBF16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

std::vector<uint16_t> ToF16(std::vector<float> x) {
  std::vector<uint16_t> y(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  EXPECT_TRUE(Launch(Op::kCast, NoAttrs{}, {ViewOf(x), ViewOf(DType::kF16, y.data(), {n})}).ok());
  return y;
}

// Whatever instruction set is in use: CPUs without F16C compute what the others convert.
class F16CastTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if ((hwy::SupportedTargets() & GetParam()) == 0) GTEST_SKIP() << "this CPU lacks it";
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_P(F16CastTest, EveryHalfBecomesItsNumber) {
  std::vector<uint16_t> all(65536);
  for (int i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(65536);
  ASSERT_TRUE(
      Launch(Op::kCast, NoAttrs{}, {ViewOf(DType::kF16, all.data(), {65536}), ViewOf(wide)}).ok());
  for (int i = 0; i < 65536; ++i) {
    const float value = HalfToFloat(all[i]);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(value)) << i;
    }
  }
}

TEST_P(F16CastTest, EveryExponentRoundsAsOneNumberDoes) {
  std::vector<float> x;
  for (uint32_t upper = 0; upper < (1u << 19); upper += 3) {
    for (uint32_t lower : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {
      x.push_back(std::bit_cast<float>(upper << 13 | lower));
    }
  }
  const std::vector<uint16_t> y = ToF16(x);
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(HalfToFloat(y[i]))) << i;
    } else {
      ASSERT_EQ(y[i], FloatToHalf(x[i])) << x[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, F16CastTest,
                         testing::Values(HWY_SSE4, HWY_AVX2, HWY_AVX3, HWY_AVX3_DL),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

TEST(CastTest, EveryBF16SurvivesTheWayToF32AndBack) {
  std::vector<uint16_t> all(65536);
  for (int i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(65536);
  ASSERT_TRUE(
      Launch(Op::kCast, NoAttrs{}, {ViewOf(DType::kBF16, all.data(), {65536}), ViewOf(wide)}).ok());
  const std::vector<uint16_t> back = ToBF16(wide);
  for (int i = 0; i < 65536; ++i) {
    if (std::isnan(FromBF16(all[i]))) {
      EXPECT_TRUE(std::isnan(FromBF16(back[i]))) << i;
    } else {
      EXPECT_EQ(back[i], all[i]);
    }
  }
}

TEST(CastTest, RoundsToTheNearestAndTiesToEven) {
  const auto bits = [](uint32_t b) { return std::bit_cast<float>(b); };
  const std::vector<uint16_t> y =
      ToBF16({bits(0x3f808000), bits(0x3f818000), bits(0x3f807fff), bits(0x3f808001),
              bits(0x7f7fffff), bits(0xbf808001), bits(0x00000001), bits(0x7fffffff)});
  EXPECT_EQ(y[0], 0x3f80);  // a tie, down to even
  EXPECT_EQ(y[1], 0x3f82);  // a tie, up to even
  EXPECT_EQ(y[2], 0x3f80);
  EXPECT_EQ(y[3], 0x3f81);
  EXPECT_EQ(y[4], 0x7f80);  // beyond the largest: infinity
  EXPECT_EQ(y[5], 0xbf81);
  EXPECT_EQ(y[6], 0x0000);
  EXPECT_TRUE(std::isnan(FromBF16(y[7])));  // not negative zero
}

TEST(CastTest, NeverErrsByMoreThanHalfAUnit) {
  std::mt19937 random(3);
  std::vector<float> x;
  while (x.size() < 50001) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnormal(value) && std::abs(value) < 1e38f) x.push_back(value);
  }
  const std::vector<uint16_t> y = ToBF16(x);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_LE(std::abs(double{FromBF16(y[i])} - x[i]), std::abs(double{x[i]}) / 256) << x[i];
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu
