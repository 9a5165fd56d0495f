// SPDX-License-Identifier: Apache-2.0
#include "base/loop.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace terrace {
namespace {

TEST(LoopTest, AfterBatchFollowsWhatIsPostedAndCalled) {
  Loop loop;
  std::atomic<int> after = 0;
  loop.Start(absl::Hours(1), [&] {
    ++after;
    return absl::Hours(1);
  });
  EXPECT_TRUE(loop.Call([] {}));
  while (after < 1) absl::SleepFor(absl::Milliseconds(1));
  loop.Post([] {});
  while (after < 2) absl::SleepFor(absl::Milliseconds(1));
  loop.Stop();
  EXPECT_FALSE(loop.Call([] {}));
}

TEST(LoopTest, WhatIsPostedRunsInOrder) {
  Loop loop;
  std::atomic<int> ran = 0;
  loop.Start(absl::Hours(1), [] { return absl::Hours(1); });
  for (int i = 0; i < 100; ++i) {
    loop.Post([&, i] {
      EXPECT_EQ(ran, i);
      ++ran;
    });
    if (i % 10 == 0) absl::SleepFor(absl::Milliseconds(1));  // in several batches
  }
  loop.Call([] {});
  EXPECT_EQ(ran, 100);
}

TEST(LoopTest, EachCallNamesTheTimeOfTheNext) {
  Loop loop;
  std::atomic<int> after = 0;
  loop.Start(absl::ZeroDuration(),
             [&] { return ++after < 4 ? absl::Milliseconds(10) : absl::InfiniteDuration(); });
  const absl::Time start = absl::Now();
  while (after < 4) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(29));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(after, 4);
}

}  // namespace
}  // namespace terrace
