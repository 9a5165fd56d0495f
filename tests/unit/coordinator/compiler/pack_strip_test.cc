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
    return OffsetOf(*strip, strip->Place(id, item, RowChoice::kLowest, &steps_));
  }

  // Of what lies in one piece.
  static std::optional<int64_t> OffsetOf(const PackStrip& strip, std::optional<RowPlace> place) {
    if (!place.has_value()) return std::nullopt;
    EXPECT_EQ(*place, strip.PlaceOf(place->offset));
    return place->offset;
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
  strip.PlaceAt(-1, {kPage, 0, 4}, strip.PlaceOf(0));
  PackStrip other = strip;
  EXPECT_EQ(Lowest(&strip, 0, {kPage - 10, 0, 4}), kPage);
  const RowItem crossing = {kPage - 10, 0, 4};
  std::vector<int> removed;
  other.PlaceAt(0, {10, 0, 4}, other.PlaceOf(kPage));
  EXPECT_EQ(Lowest(&other, 1, crossing), kPage + 10);
  EXPECT_EQ(Lowest(&other, 2, {10, 0, 4}), std::nullopt);
}

TEST_F(PackStripTest, RowsThatAreOccupiedComeBeforeLowerOnesThatAreNot) {
  PackStrip strip = StripOf(10);
  strip.PlaceAt(0, {1000, 0, 4}, strip.PlaceOf(kPage));
  EXPECT_EQ(strip.Place(1, {1000, 1, 2}, RowChoice::kFewest, &steps_), strip.PlaceOf(kPage + 1000));
  EXPECT_EQ(strip.Place(2, {1000, 1, 2}, RowChoice::kLowest, &steps_), strip.PlaceOf(0));
}

TEST_F(PackStripTest, TheCheapestMakesWayAndWhatHasNoIdStays) {
  PackStrip strip = StripOf(1);
  strip.PlaceAt(-1, {1000, 0, 4}, strip.PlaceOf(0));
  strip.PlaceAt(0, {1500, 0, 4}, strip.PlaceOf(1000));
  strip.PlaceAt(1, {1500, 0, 4}, strip.PlaceOf(2500));
  ASSERT_EQ(Lowest(&strip, 2, {1500, 1, 2}), std::nullopt);
  std::vector<int> removed;
  EXPECT_EQ(strip.Force(2, {1500, 1, 2}, {{3, 2, 1}}, &removed, &steps_), strip.PlaceOf(2500));
  EXPECT_EQ(removed, std::vector<int>{1});
  EXPECT_EQ(Lowest(&strip, 1, {1500, 2, 4}), 2500);
  EXPECT_EQ(strip.Force(3, {kPage - 1, 0, 4}, {{1, 1, 1, 1}}, &removed, &steps_), std::nullopt);
}

// Three rows of which the middle one is full; 596 bytes are free at the end of the first, 1,096 in
// front of the third.
class PackStripSplitTest : public PackStripTest {
 protected:
  PackStripSplitTest()
      : strip_(kPage, 3, std::vector<int>(kSlots, 3), std::vector<int64_t>(kSlots, 1)) {
    strip_.PlaceAt(0, {3500, 0, 4}, strip_.PlaceOf(0));
    strip_.PlaceAt(1, {kPage - 1, 0, 4}, strip_.PlaceOf(kPage));
    strip_.PlaceAt(2, {3000, 0, 2}, strip_.PlaceOf(2 * kPage + 1096));
    strip_.PlaceAt(3, {500, 2, 4}, strip_.PlaceOf(2 * kPage + 3596));
  }

  PackStrip strip_;
};

TEST_F(PackStripSplitTest, WhatFitsIntoNoHoleLiesAtTheEndOfOneRowAndTheBeginningOfAnother) {
  const RowPlace place = {3500, 2};
  EXPECT_EQ(strip_.Place(4, {1600, 0, 2, true}, RowChoice::kLowest, &steps_), place);
  EXPECT_EQ(Lowest(&strip_, 5, {1, 0, 4}), 2 * kPage - 1);
  EXPECT_EQ(Lowest(&strip_, 6, {92, 0, 2}), 2 * kPage + 1004);
  EXPECT_EQ(Lowest(&strip_, 7, {1, 0, 2}), std::nullopt);
}

// What begins last ends first here: the room behind a row is behind all that lie in it.
TEST_F(PackStripSplitTest, BehindARowIsBehindAllThatMeetItWhetherOrNotTheyMeetEachOther) {
  PackStrip strip(kPage, 2, std::vector<int>(kSlots, 2), std::vector<int64_t>(kSlots, 1));
  strip.PlaceAt(0, {4000, 0, 2}, strip.PlaceOf(0));
  strip.PlaceAt(1, {500, 2, 4}, strip.PlaceOf(100));
  strip.PlaceAt(2, {4000, 0, 4}, strip.PlaceOf(kPage + 96));
  const RowPlace place = {4000, 1};
  EXPECT_EQ(strip.Place(3, {190, 1, 3}, RowChoice::kLowest, &steps_), place);
  EXPECT_EQ(strip.Place(4, {3, 1, 3}, RowChoice::kLowest, &steps_), std::nullopt);
}

TEST_F(PackStripSplitTest, WhatLiesInTwoRowsMakesWayInBoth) {
  ASSERT_TRUE(strip_.Place(4, {1600, 0, 2}, RowChoice::kLowest, &steps_).has_value());
  std::vector<int> removed;
  const std::vector<int64_t> prices = {100, 100, 100, 100, 1, 1};
  ASSERT_TRUE(strip_.Force(5, {1096, 0, 2}, prices, &removed, &steps_).has_value());
  EXPECT_EQ(removed, std::vector<int>{4});
  EXPECT_EQ(Lowest(&strip_, 6, {596, 0, 2}), 3500);
}

TEST_F(PackStripSplitTest, TheEndOfARowIsTakenWhereLittleMakesWayAtTheBeginningOfAnother) {
  strip_.PlaceAt(4, {1096, 0, 2}, strip_.PlaceOf(2 * kPage));
  std::vector<int> removed;
  const std::vector<int64_t> prices = {100, 100, 100, 100, 1, 1};
  const RowPlace place = {3500, 2};
  EXPECT_EQ(strip_.Force(5, {1600, 0, 2, true}, prices, &removed, &steps_), place);
  EXPECT_EQ(removed, std::vector<int>{4});
  EXPECT_EQ(Lowest(&strip_, 6, {93, 0, 2}), std::nullopt);
  EXPECT_EQ(Lowest(&strip_, 7, {92, 0, 2}), 2 * kPage + 1004);
}

}  // namespace
}  // namespace terrace
