// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/marks.h"

#include <gtest/gtest.h>

namespace terrace::check {
namespace {

TEST(MarksTest, ThoseBelowANumberAreTheSumOfEach) {
  Marks sum = 0;
  for (int m = 0; m < 1000; ++m) {
    EXPECT_EQ(MarksBelow(m), sum);
    sum = AddMarks(sum, MarkOf(m));
  }
}

TEST(MarksTest, MovedMarksAreThoseOfLaterMicroBatches) {
  for (const int64_t m : {0, 1, 255, 256, 70'000, 1 << 30}) {
    for (const int64_t by : {0, 1, 300, 1 << 30})
      EXPECT_EQ(MoveMarks(MarkOf(m), by), MarkOf(m + by)) << m << " + " << by;
  }
  EXPECT_EQ(AddMarks(MoveMarks(MarksBelow(70), 5), MarksBelow(5)), MarksBelow(75));
}

TEST(MarksTest, SpreadAndRepeatedMarksAreSums) {
  EXPECT_EQ(SpreadMarks(MarkOf(7), 4), SubtractMarks(MarksBelow(11), MarksBelow(7)));
  EXPECT_EQ(RepeatMarks(MarkOf(9), 3), AddMarks(MarkOf(9), AddMarks(MarkOf(9), MarkOf(9))));
  EXPECT_EQ(SubtractMarks(MarkOf(3), MarkOf(3)), 0u);
}

}  // namespace
}  // namespace terrace::check
