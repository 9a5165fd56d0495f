// SPDX-License-Identifier: Apache-2.0
#include "base/text/number_format.h"

#include <gtest/gtest.h>

#include "base/text/wrap.h"

namespace terrace {
namespace {

TEST(WordsTest, NumbersAreGroupedInThousands) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(124439808), "124,439,808");
  EXPECT_EQ(Grouped(-1234), "-1,234");
  EXPECT_EQ(Grouped(-123), "-123");
}

TEST(WordsTest, SecondsHaveTheUnitThatReadsWell) {
  EXPECT_EQ(SecondsText(0), "0 s");
  EXPECT_EQ(SecondsText(12.34e-6), "12.3 us");
  EXPECT_EQ(SecondsText(0.0125), "12.5 ms");
  EXPECT_EQ(SecondsText(2.584), "2.58 s");
  EXPECT_EQ(SecondsText(600), "10.0 min");
  EXPECT_EQ(SecondsText(3 * 3600), "3.0 h");
  EXPECT_EQ(SecondsText(10 * 86400), "10.0 days");
}

TEST(WordsTest, RatesAreInGigaAndTera) {
  EXPECT_EQ(RateText(989.4e12, "FLOP"), "989.40 TFLOP/s");
  EXPECT_EQ(RateText(45e9, "B"), "45.0 GB/s");
  EXPECT_EQ(PercentText(0.5512), "55.1 %");
}

TEST(WordsTest, LinesBreakBetweenWords) {
  EXPECT_EQ(Wrapped("one two three", 100, 0), "one two three");
  EXPECT_EQ(Wrapped("one two three", 7, 0), "one two\nthree");
  EXPECT_EQ(Wrapped("one two three", 9, 2), "one two\n  three");
  EXPECT_EQ(Wrapped("a\nb c", 10, 2), "a\n  b c");
  EXPECT_EQ(Wrapped("much-too-long-a-word is kept", 8, 0), "much-too-long-a-word\nis kept");
  EXPECT_EQ(Wrapped("", 8, 2), "");
}

}  // namespace
}  // namespace terrace
