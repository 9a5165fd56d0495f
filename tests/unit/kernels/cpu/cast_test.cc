// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

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
