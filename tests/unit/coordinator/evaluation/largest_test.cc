// The search for the largest size: it ends at the edge wherever that is, and asks no value twice.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/evaluation/largest.h"

#include <gtest/gtest.h>

#include <set>

namespace terrace {
namespace {

struct Asked {
  Largest largest;
  std::set<int64_t> values;
};

// All up to `edge` fits; after `patience` answers there are none.
Asked Search(const Steps& steps, int64_t edge, size_t patience = 1000) {
  Asked asked;
  asked.largest = LargestThatFits(steps, [&](int64_t value) -> std::optional<Fit> {
    if (asked.values.size() == patience) return std::nullopt;
    EXPECT_TRUE(asked.values.insert(value).second) << value << " is asked twice";
    return Fit{.fits = value <= edge, .reason = value <= edge ? "" : "too large"};
  });
  return asked;
}

TEST(LargestTest, FindsTheEdgeFromBelowAndFromAbove) {
  for (int64_t first : {1, 7, 64, 100}) {
    for (int64_t edge = 0; edge <= 100; ++edge) {
      const Asked asked = Search({.step = 1, .most = 100, .first = first}, edge);
      EXPECT_EQ(asked.largest.value, edge);
      EXPECT_EQ(asked.largest.refused, edge < 100 ? edge + 1 : 0);
      EXPECT_EQ(asked.largest.reason, edge < 100 ? "too large" : "");
      EXPECT_FALSE(asked.largest.ended);
      EXPECT_LE(asked.values.size(), 16u);
    }
  }
}

TEST(LargestTest, KeepsToStepsButForTheMostThatCanBe) {
  const Steps steps = {.step = 16, .most = 100, .first = 64};
  EXPECT_EQ(Search(steps, 95).largest.value, 80);
  EXPECT_EQ(Search(steps, 95).largest.refused, 96);
  EXPECT_EQ(Search(steps, 99).largest.refused, 100);
  EXPECT_EQ(Search(steps, 100).largest.value, 100);
  EXPECT_EQ(Search(steps, 3).largest.refused, 16);
}

TEST(LargestTest, WhereAskingEndsTheLargestKnownIsLeft) {
  const Asked asked = Search({.step = 1, .most = 100, .first = 8}, 50, 2);
  EXPECT_TRUE(asked.largest.ended);
  EXPECT_EQ(asked.largest.value, 16);
  EXPECT_EQ(asked.largest.refused, 0);
  EXPECT_EQ(Search({.step = 1, .most = 100, .first = 8}, 50, 0).largest.value, 0);
}

}  // namespace
}  // namespace terrace
