// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/occupancy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace terrace {
namespace {

// The same by looking at every taken piece.
class PlainOccupancy {
 public:
  int64_t FindLowest(int begin, int end, int64_t bytes) const {
    for (int64_t offset = 0;; ++offset) {
      if (IsFree(begin, end, offset, bytes)) return offset;
    }
  }
  void Take(int begin, int end, int64_t offset, int64_t bytes) {
    taken_.push_back({begin, end, offset, bytes});
  }

 private:
  bool IsFree(int begin, int end, int64_t offset, int64_t bytes) const {
    bool free = true;
    for (const Taken& taken : taken_) {
      free = free && !(taken.begin < end && begin < taken.end && taken.offset < offset + bytes &&
                       offset < taken.offset + taken.bytes);
    }
    return free;
  }

  struct Taken {
    int begin = 0, end = 0;
    int64_t offset = 0, bytes = 0;
  };
  std::vector<Taken> taken_;
};

TEST(OccupancyTest, WhatIsTakenIsTakenDuringItsTimeOnly) {
  Occupancy occupancy(4);
  occupancy.Take(1, 3, 0, 10);
  EXPECT_EQ(occupancy.FindLowest(0, 1, 5), 0);
  EXPECT_EQ(occupancy.FindLowest(3, 4, 5), 0);
  EXPECT_EQ(occupancy.FindLowest(0, 2, 5), 10);
  EXPECT_EQ(occupancy.FindLowest(2, 4, 5), 10);
}

TEST(OccupancyTest, AHoleIsUsedIfItIsLargeEnough) {
  Occupancy occupancy(1);
  occupancy.Take(0, 1, 0, 10);
  occupancy.Take(0, 1, 14, 10);
  EXPECT_EQ(occupancy.FindLowest(0, 1, 4), 10);
  EXPECT_EQ(occupancy.FindLowest(0, 1, 5), 24);
}

TEST(OccupancyTest, FindsWhatLookingEverywhereFinds) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int slots = 1 + static_cast<int>(random() % 40);
    Occupancy occupancy(slots);
    PlainOccupancy plain;
    for (int i = 0; i < 80; ++i) {
      const int begin = static_cast<int>(random() % slots);
      const int end = begin + 1 + static_cast<int>(random() % (slots - begin));
      const int64_t bytes = 1 + random() % 12;
      const int64_t offset = occupancy.FindLowest(begin, end, bytes);
      ASSERT_EQ(offset, plain.FindLowest(begin, end, bytes)) << i;
      // Now and then higher than need be, so that holes remain.
      const int64_t taken = offset + (random() % 4 == 0 ? 100 * i : 0);
      if (taken != offset && plain.FindLowest(begin, end, bytes + taken) != 0) continue;
      occupancy.Take(begin, end, taken, bytes);
      plain.Take(begin, end, taken, bytes);
    }
  }
}

}  // namespace
}  // namespace terrace
