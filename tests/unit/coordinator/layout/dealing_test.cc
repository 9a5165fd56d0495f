// SPDX-License-Identifier: Apache-2.0
#include "coordinator/layout/dealing.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(DealingTest, RoundsThatAreMoreThanHalfFullAreDealt) {
  const auto expect = [](int64_t count, int64_t ranks, int64_t rounds, int64_t kept) {
    const Deal deal = DealOf(count, ranks);
    EXPECT_EQ(deal.rounds, rounds) << count << " to " << ranks;
    EXPECT_EQ(deal.kept, kept) << count << " to " << ranks;
  };
  expect(12, 4, 3, 0);
  expect(12, 1, 12, 0);
  expect(7, 2, 3, 1);
  expect(7, 4, 2, 0);
  expect(6, 4, 1, 2);
  expect(1, 8, 0, 1);
  expect(5, 8, 1, 0);
  expect(4, 8, 0, 4);
  expect(0, 8, 0, 0);
}

TEST(DealingTest, NoneIsDealtTwice) {
  for (int64_t count = 0; count < 50; ++count) {
    for (int64_t ranks = 1; ranks < 20; ++ranks) {
      const Deal deal = DealOf(count, ranks);
      EXPECT_LE(count - deal.kept, deal.rounds * ranks);
      EXPECT_GT(count - deal.kept, deal.rounds == 0 ? -1 : (deal.rounds - 1) * ranks + ranks / 2);
      EXPECT_LE(2 * deal.kept, ranks);
    }
  }
}

}  // namespace
}  // namespace terrace
