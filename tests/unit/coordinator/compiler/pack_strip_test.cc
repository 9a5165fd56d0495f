// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_strip.h"

#include <gtest/gtest.h>

#include <vector>

namespace terrace {
namespace {

constexpr int64_t kPage = 4096;
constexpr int kSlots = 4;

// So many rows in every slot, of a strip of ten.
PackStrip StripOf(int rows_left) {
  return PackStrip(kPage, 10, std::vector<int>(kSlots, rows_left), std::vector<int64_t>(kSlots, 1));
}

class PackStripTest : public testing::Test {
 protected:
  std::optional<int64_t> Lowest(PackStrip* strip, int id, const RowItem& item) {
    return strip->Place(id, item, RowChoice::kLowest, &steps_);
  }

  int64_t steps_ = 1'000'000;
};

TEST_F(PackStripTest, WhatMeetsLiesApartAndWhatDoesNotSharesBytes) {
  PackStrip strip = StripOf(10);
  EXPECT_EQ(Lowest(&strip, 0, {1000, 0, 2}), 0);
  EXPECT_EQ(Lowest(&strip, 1, {1000, 1, 3}), 1000);
  EXPECT_EQ(Lowest(&strip, 2, {500, 2, 4}), 0);
  EXPECT_LT(steps_, 1'000'000);
}

TEST_F(PackStripTest, WhatIsOfWholePagesTouchesAnEdgeOrCrossesIt) {
  PackStrip strip = StripOf(10);
  EXPECT_EQ(Lowest(&strip, 0, {1000, 0, 4}), 0);
  EXPECT_EQ(Lowest(&strip, 1, {1000, 0, 4, true}), kPage - 1000);
  EXPECT_EQ(Lowest(&strip, 2, {1000, 0, 4, true}), kPage);
  EXPECT_EQ(Lowest(&strip, 3, {kPage - 1000, 0, 4, true}), kPage + 1000);
  EXPECT_EQ(Lowest(&strip, 4, {2000, 0, 4}), 1000);
}

TEST_F(PackStripTest, NoMoreRowsAreOccupiedThanAreLeft) {
  PackStrip strip(kPage, 10, {1, 1, 2, 2}, {1, 1, 1, 1});
  EXPECT_EQ(Lowest(&strip, 0, {3000, 0, 4}), 0);
  EXPECT_EQ(Lowest(&strip, 1, {3000, 1, 3}), std::nullopt);
  EXPECT_EQ(Lowest(&strip, 2, {3000, 2, 4}), 3000);
  EXPECT_EQ(Lowest(&strip, 3, {1000, 0, 2}), 3000);
}

// One that crosses an edge takes two.
TEST_F(PackStripTest, OneRowIsNotLeftForTwo) {
  PackStrip strip(kPage, 10, {2, 2, 2, 2}, {1, 1, 1, 1});
  strip.PlaceAt(-1, {kPage, 0, 4}, 0);
  PackStrip other = strip;
  EXPECT_EQ(Lowest(&strip, 0, {kPage - 10, 0, 4}), kPage);
  const RowItem crossing = {kPage - 10, 0, 4};
  std::vector<int> removed;
  other.PlaceAt(0, {10, 0, 4}, kPage);
  EXPECT_EQ(Lowest(&other, 1, crossing), kPage + 10);
  EXPECT_EQ(Lowest(&other, 2, {10, 0, 4}), std::nullopt);
}

TEST_F(PackStripTest, RowsThatAreOccupiedComeBeforeLowerOnesThatAreNot) {
  PackStrip strip = StripOf(10);
  strip.PlaceAt(0, {1000, 0, 4}, kPage);
  EXPECT_EQ(strip.Place(1, {1000, 1, 2}, RowChoice::kFewest, &steps_), kPage + 1000);
  EXPECT_EQ(strip.Place(2, {1000, 1, 2}, RowChoice::kLowest, &steps_), 0);
}

TEST_F(PackStripTest, TheCheapestMakesWayAndWhatHasNoIdStays) {
  PackStrip strip = StripOf(1);
  strip.PlaceAt(-1, {1000, 0, 4}, 0);
  strip.PlaceAt(0, {1500, 0, 4}, 1000);
  strip.PlaceAt(1, {1500, 0, 4}, 2500);
  ASSERT_EQ(Lowest(&strip, 2, {1500, 1, 2}), std::nullopt);
  std::vector<int> removed;
  EXPECT_EQ(strip.Force(2, {1500, 1, 2}, {{3, 2, 1}}, &removed, &steps_), 2500);
  EXPECT_EQ(removed, std::vector<int>{1});
  EXPECT_EQ(Lowest(&strip, 1, {1500, 2, 4}), 2500);
  EXPECT_EQ(strip.Force(3, {kPage - 1, 0, 4}, {{1, 1, 1, 1}}, &removed, &steps_), std::nullopt);
}

}  // namespace
}  // namespace terrace
