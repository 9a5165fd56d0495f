// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/export/low_rank.h"

#include <limits>

#include "gmock/gmock.h"

namespace terrace {
namespace {

using kernels::DType;
using ::testing::ElementsAre;

Rounding Round(std::vector<float> before, std::vector<float> merged, DType dtype) {
  Rounding rounding;
  std::vector<std::byte> stored(merged.size() * kernels::SizeOf(dtype));
  RoundMerged(before, merged, dtype, stored, &rounding);
  return rounding;
}

TEST(LowRankTest, Transposes) {
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(Transposed(matrix, 2), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(Transposed({}, 0), ElementsAre());
}

TEST(LowRankTest, AddsTheRowsThatAreAskedFor) {
  const LowRank product = {.rows = 3,
                           .columns = 2,
                           .rank = 2,
                           .scale = 0.5f,
                           .left = {1, 2, 3, 4, 5, 6},
                           .right = {10, 20, 30, 40}};
  std::vector<float> all = {1, 1, 1, 1, 1, 1};
  AddRows(product, 0, all);
  EXPECT_THAT(all, ElementsAre(36, 51, 76, 111, 116, 171));
  std::vector<float> last = {1, 1};
  AddRows(product, 2, last);
  EXPECT_THAT(last, ElementsAre(116, 171));
}

TEST(LowRankTest, CountsWhatRoundingUndoes) {
  // bf16 has 8 bits: beside 1 the next number is 1 + 2^-7, half of that way is a tie to even.
  const Rounding rounding = Round({1, 1, 1}, {1 + 0x1p-10f, 1 + 0x1p-7f, 1}, DType::kBF16);
  EXPECT_EQ(rounding.weights, 3);
  EXPECT_EQ(rounding.undone, 1);
  EXPECT_DOUBLE_EQ(rounding.change_squares, 0x1p-20 + 0x1p-14);
  EXPECT_DOUBLE_EQ(rounding.rounding_squares, 0x1p-20);
}

TEST(LowRankTest, WithoutAChangeNothingIsRounded) {
  EXPECT_EQ(Round({1, 2}, {1, 2}, DType::kBF16).ratio(), 0);
  EXPECT_EQ(Round({0.1f}, {0.3f}, DType::kF32).ratio(), 0);
}

}  // namespace
}  // namespace terrace
