// SPDX-License-Identifier: Apache-2.0
#include "base/text/duration.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(DurationTest, NumbersWithUnitsAreRead) {
  EXPECT_EQ(ParseSpan("90s"), 90);
  EXPECT_EQ(ParseSpan("2h30m"), 9000);
  EXPECT_EQ(ParseSpan("1d12h"), 129'600);
  EXPECT_EQ(ParseSpan("1.5h"), 5400);
  EXPECT_EQ(ParseSpan("1d1s"), 86'401);
  EXPECT_EQ(ParseSpan("0s"), 0);
}

TEST(DurationTest, AllElseIsRefused) {
  for (const char* text : {"", "90", "h", "-5m", "5 m", "5m3h", "5m5m", "1h-5m", "5w", "1..5h",
                           "inf", "1e3s", "99999999999999999999d", "2:30:00", "5m "}) {
    EXPECT_EQ(ParseSpan(text), std::nullopt) << text;
  }
}

TEST(DurationTest, TextIsReadBack) {
  EXPECT_EQ(SpanText(0), "0s");
  EXPECT_EQ(SpanText(9000), "2h30m");
  EXPECT_EQ(SpanText(90), "1m30s");
  for (const int64_t seconds : {1, 59, 60, 3599, 86'400, 86'461, 31'622'400}) {
    EXPECT_EQ(ParseSpan(SpanText(seconds)), seconds);
  }
}

}  // namespace
}  // namespace terrace
