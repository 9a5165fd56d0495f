// What ThreadSanitizer is told of absl::Mutex (tests/support/tsan_mutex.cc): each way to take and
// to leave one orders what it guards, and without one a race is found.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace terrace {
namespace {

constexpr int kRaceFound = 66;  // the sanitizer's exit code
constexpr int kTimes = 1000;

// Two threads that do the same; ends the process.
void Both(const std::function<void()>& work) {
  std::thread other([&] {
    for (int i = 0; i < kTimes; ++i) work();
  });
  for (int i = 0; i < kTimes; ++i) work();
  other.join();
  std::exit(0);
}

class TsanMutexTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  absl::Mutex mutex_;
  absl::CondVar changed_;
  int guarded_ = 0;
};

TEST_F(TsanMutexTest, WithoutALockARaceIsFound) {
  EXPECT_EXIT(Both([this] { ++guarded_; }), testing::ExitedWithCode(kRaceFound), "data race");
}

TEST_F(TsanMutexTest, AnotherMutexDoesNotHelp) {
  EXPECT_EXIT(Both([this] {
                absl::Mutex own;
                const absl::MutexLock lock(&own);
                ++guarded_;
              }),
              testing::ExitedWithCode(kRaceFound), "data race");
}

TEST_F(TsanMutexTest, ALockOrders) {
  EXPECT_EXIT(Both([this] {
                const absl::MutexLock lock(&mutex_);
                ++guarded_;
              }),
              testing::ExitedWithCode(0), "");
  EXPECT_EXIT(Both([this] {
                if (!mutex_.TryLock()) return;
                ++guarded_;
                mutex_.Unlock();
              }),
              testing::ExitedWithCode(0), "");
}

TEST_F(TsanMutexTest, WaitingForAConditionOrders) {
  // One thread hands a number to the other, by condition, and takes it back by variable.
  const auto hand_over = [this] {
    bool ready = false, done = false;
    std::thread other([&] {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&ready));
      ++guarded_;
      done = true;
      changed_.SignalAll();
    });
    {
      const absl::MutexLock lock(&mutex_);
      ++guarded_;
      ready = true;
      while (!done) changed_.WaitWithTimeout(&mutex_, absl::Seconds(10));
      ++guarded_;
    }
    other.join();
    std::exit(guarded_ == 3 ? 0 : 1);
  };
  EXPECT_EXIT(hand_over(), testing::ExitedWithCode(0), "");
}

TEST_F(TsanMutexTest, AConditionThatDoesNotComeIsNotWaitedForForEver) {
  bool never = false;
  const absl::MutexLock lock(&mutex_);
  EXPECT_FALSE(mutex_.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(5)));
}

}  // namespace
}  // namespace terrace
