// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/cpu_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// user nice system idle iowait irq softirq steal guest guest_nice, in hundredths of seconds.
constexpr char kStat[] =
    "cpu  1000 0 500 8000 100 20 30 350 400 0\n"
    "cpu0 600 0 300 4000 50 10 20 20 400 0\n"
    "cpu1 400 0 200 4000 50 10 10 330 0 0\n"
    "intr 1 2 3\n";

TEST(CpuTimesTest, AreOfTheProcessorsThatAreOurs) {
  const CpuTimes all = ParseCpuTimes(kStat, 100, [](int) { return true; });
  EXPECT_DOUBLE_EQ(all.all, 100);
  EXPECT_DOUBLE_EQ(all.busy, 15.5) << "a guest's time is the user's already";
  EXPECT_DOUBLE_EQ(all.stolen, 3.5);
  const CpuTimes second = ParseCpuTimes(kStat, 100, [](int cpu) { return cpu == 1; });
  EXPECT_DOUBLE_EQ(second.all, 50);
  EXPECT_DOUBLE_EQ(second.stolen, 3.3);
  EXPECT_DOUBLE_EQ(ParseCpuTimes("no such file", 100, [](int) { return true; }).all, 0);
}

TEST(CpuTimesTest, WhatOthersTookIsToldAndOurOwnIsNot) {
  const CpuTimes before = {.all = 10, .busy = 4, .stolen = 0, .own = 1};
  EXPECT_THAT(DisturbanceBetween(before, {.all = 20, .busy = 12, .own = 8.9}), IsEmpty());
  EXPECT_THAT(DisturbanceBetween(before, {.all = 20, .busy = 13, .own = 5}),
              HasSubstr("other processes used 50 % of its processors"));
  EXPECT_THAT(DisturbanceBetween(before, {.all = 20, .busy = 13, .stolen = 2, .own = 5}),
              AllOf(HasSubstr("50 %"), HasSubstr("the hypervisor took 20 %")));
  EXPECT_THAT(DisturbanceBetween({}, {}), IsEmpty()) << "nobody knows";
}

TEST(CpuWatchTest, AMeasurementThatWasCutShortIsInDoubt) {
  CpuWatch watch;
  watch.Begin();
  watch.SetCutShort("each kernel was measured once");
  EXPECT_THAT(watch.End(), Not(IsEmpty())) << "that, or what others took meanwhile";
}

TEST(CpuTimesTest, OurOwnWorkIsOurs) {
  const CpuTimes before = CpuTimesNow();
  std::atomic<bool> done = false;
  std::thread worker([&done] {
    while (!done) {
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  done = true;
  worker.join();
  EXPECT_GT(CpuTimesNow().own - before.own, 0.05);
}

}  // namespace
}  // namespace terrace
