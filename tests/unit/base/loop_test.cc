// SPDX-License-Identifier: Apache-2.0
#include "base/loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace terrace {
namespace {

TEST(LoopTest, AfterBatchFollowsWhatIsPostedAndCalled) {
  Loop loop;
  std::atomic<int> after = 0;
  loop.Start(absl::Hours(1), [&] { ++after; });
  EXPECT_TRUE(loop.Call([] {}));
  while (after < 1) absl::SleepFor(absl::Milliseconds(1));
  loop.Post([] {});
  while (after < 2) absl::SleepFor(absl::Milliseconds(1));
  loop.Stop();
  EXPECT_FALSE(loop.Call([] {}));
}

TEST(LoopTest, WhatIsPostedAsideRunsInOrderAndWithoutAfterBatch) {
  Loop loop;
  std::atomic<int> after = 0, ran = 0;
  loop.Start(absl::Hours(1), [&] { ++after; });
  for (int i = 0; i < 100; ++i) {
    loop.PostAside([&, i] {
      EXPECT_EQ(ran, i);
      ++ran;
    });
    if (i % 10 == 0) absl::SleepFor(absl::Milliseconds(1));  // in several batches
  }
  while (ran < 100) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(after, 0);
  loop.Call([] {});
  while (after < 1) absl::SleepFor(absl::Milliseconds(1));
}

TEST(LoopTest, TicksComeHoweverMuchIsPostedAside) {
  Loop loop;
  std::atomic<int> after = 0;
  loop.Start(absl::Milliseconds(20), [&] { ++after; });
  std::function<void()> again = [&] { loop.PostAside(again); };
  loop.PostAside(again);
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (after < 3 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(after, 3);
  loop.Stop();
}

}  // namespace
}  // namespace terrace
