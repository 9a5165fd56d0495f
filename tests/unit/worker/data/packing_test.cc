// SPDX-License-Identifier: Apache-2.0
#include "worker/data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace terrace {
namespace {

using testing::ElementsAre;

std::vector<std::vector<int64_t>> RowsOf(const PackedRows& packed) {
  std::vector<std::vector<int64_t>> rows;
  for (int64_t r = 0; r < packed.rows(); ++r)
    rows.emplace_back(packed.order.begin() + packed.first[r],
                      packed.order.begin() + packed.first[r + 1]);
  return rows;
}

TEST(PackingTest, TheLongestComeFirstAndGoWhereTheLeastRoomIs) {
  // 7 | 6 | 5, 5 | 4: room 3, 4, 0, 6; 4 fills the row of 6; 3 fills the row of 7.
  const std::vector<int64_t> tokens = {3, 5, 7, 4, 5, 6};
  EXPECT_THAT(RowsOf(PackBestFit(tokens, 10)),
              ElementsAre(ElementsAre(2, 0), ElementsAre(5, 3), ElementsAre(1, 4)));
}

TEST(PackingTest, NothingIsNoRow) {
  EXPECT_EQ(PackBestFit({}, 8).rows(), 0);
  EXPECT_THAT(RowsOf(PackBestFit(std::vector<int64_t>{8}, 8)), ElementsAre(ElementsAre(0)));
}

// Every sample lies in one row, and no row holds too much. Lengths drawn alike fill rows well: no
// more are taken than 11/9 of those that the tokens would fill (Johnson 1974 bounds them by 11/9 of
// the fewest, which are no fewer).
TEST(PackingTest, RowsHoldEverySampleOnceAndNoMoreThanFits) {
  std::mt19937 random(5);
  for (const int64_t capacity : {1, 7, 64, 1000}) {
    std::vector<int64_t> tokens(700);
    for (int64_t& length : tokens) length = 1 + static_cast<int64_t>(random()) % capacity;
    const PackedRows packed = PackBestFit(tokens, capacity);
    std::vector<int64_t> seen;
    for (const std::vector<int64_t>& row : RowsOf(packed)) {
      int64_t all = 0;
      for (const int64_t sample : row) all += tokens[sample];
      EXPECT_LE(all, capacity);
      EXPECT_GT(all, 0);
      seen.insert(seen.end(), row.begin(), row.end());
    }
    std::sort(seen.begin(), seen.end());
    std::vector<int64_t> expected(tokens.size());
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(seen, expected);
    const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    EXPECT_LE(packed.rows(), 11 * ((all + capacity - 1) / capacity) / 9 + 1) << capacity;
  }
}

// Lengths as instruction data have them: most are short, some as long as a row (log-normal).
TEST(PackingTest, UnderTwoPercentOfALongTailedSetIsPadding) {
  constexpr int64_t kCapacity = 2048;
  std::mt19937 random(11);
  std::lognormal_distribution<double> length(5.5, 1.0);
  std::vector<int64_t> tokens(20'000);
  for (int64_t& count : tokens)
    count = std::clamp<int64_t>(std::llround(length(random)), 1, kCapacity);
  const auto all = static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}));
  const auto packed = static_cast<double>(PackBestFit(tokens, kCapacity).rows() * kCapacity);
  EXPECT_LT(1 - all / packed, 0.02);
}

}  // namespace
}  // namespace terrace
