// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/fair_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/queue/cluster.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kDay = 86'400;
constexpr int64_t kDayMs = kDay * 1000;

TEST(FairShareTest, UsageCountsHalfAfterEachHalfLife) {
  const Usage used{.device_seconds = 800, .unix_ms = kDayMs};
  EXPECT_DOUBLE_EQ(DecayedSeconds(used, kDayMs, kDay), 800);
  EXPECT_DOUBLE_EQ(DecayedSeconds(used, 2 * kDayMs, kDay), 400);
  EXPECT_DOUBLE_EQ(DecayedSeconds(used, 4 * kDayMs, kDay), 100);
  EXPECT_DOUBLE_EQ(DecayedSeconds(used, 0, kDay), 800) << "a clock that was set back";
  EXPECT_DOUBLE_EQ(DecayedSeconds(used, 9 * kDayMs, 0), 800);
  const Usage more = WithUse(used, 50, 3 * kDayMs, kDay);
  EXPECT_DOUBLE_EQ(more.device_seconds, 250);
  EXPECT_EQ(more.unix_ms, 3 * kDayMs);
}

TEST(FairShareTest, WhoHadNothingGainsOneAndWhoHadItsShareAHalf) {
  EXPECT_EQ(FairShareFactor(0, 100, 2), 1);
  EXPECT_EQ(FairShareFactor(50, 100, 2), 0.5);
  EXPECT_EQ(FairShareFactor(100, 100, 2), 0.25);
  EXPECT_EQ(FairShareFactor(10, 10, 1), 1) << "nobody to share with";
  EXPECT_EQ(FairShareFactor(0, 0, 3), 1);
}

TEST(FairShareTest, PriorityIsWhatIsAskedForWithAgeAndShare) {
  const QueueOptions options{.priority_age_seconds = kDay, .fair_share_half_life_seconds = kDay};
  EXPECT_DOUBLE_EQ(QueuePriority(5, kDayMs / 2, 0.25, options), 5.75);
  EXPECT_DOUBLE_EQ(QueuePriority(-1, kDayMs, 1, {.priority_age_seconds = 0}), 0);
  EXPECT_DOUBLE_EQ(QueuePriority(0, kDayMs, 1,
                                 {.priority_age_seconds = kDay, .fair_share_half_life_seconds = 0}),
                   1);
  EXPECT_GT(QueuePriority(0, 3 * kDayMs, 0, options), QueuePriority(2, 0, 0.9, options))
      << "a job that waits goes first in the end";
}

TEST(QuotaTest, JobsBeyondAQuotaWaitAndKeepNothing) {
  std::vector<QueuedJob> jobs = {JobOf("a", 2, 5), JobOf("b", 1, 5), JobOf("c", 1, 5),
                                 JobOf("d", 4, 5)};
  for (QueuedJob& job : jobs) job.owner = 0;
  jobs[2].owner = 1;
  jobs[3].owner = 1;
  const auto decisions = ScheduleQueue(jobs, {WorkerOf("w", {0, 0, 0, 0})}, kQueueNowMs,
                                       {{"alice", 1, 3}, {"bob", 0, 2}});
  EXPECT_THAT(decisions[0].ranks, SizeIs(2)) << "three of three";
  ASSERT_THAT(decisions[1].ranks, IsEmpty());
  EXPECT_EQ(decisions[1].waits->reasons[0].what, WaitFor::kQuota);
  EXPECT_EQ(decisions[1].waits->reasons[0].text,
            "needs 1 device; jobs of alice hold 3 of the 3 that the quota allows");
  EXPECT_EQ(decisions[1].waits->starts_ms, kUnknownMs);
  EXPECT_THAT(decisions[2].ranks, SizeIs(1)) << "another's job behind it";
  EXPECT_THAT(decisions[3].waits->reasons[0].text,
              HasSubstr("it starts only when the quota is raised"));
}

TEST(QuotaTest, AJobThatWaitsForOthersKeepsNothingAndTellsBoth) {
  std::vector<QueuedJob> jobs = {JobOf("a", 2, 5), JobOf("b", 1, kUnknownMs)};
  jobs[0].waits_first = "job x must end first";
  const auto decisions = ScheduleQueue(jobs, {WorkerOf("w", {0, 9})}, kQueueNowMs);
  ASSERT_THAT(decisions[0].waits->reasons, SizeIs(2));
  EXPECT_EQ(decisions[0].waits->reasons[0].what, WaitFor::kDependency);
  EXPECT_EQ(decisions[0].waits->reasons[1].what, WaitFor::kDevices);
  EXPECT_THAT(MessageOf(*decisions[0].waits),
              HasSubstr("job x must end first, and needs 1 worker"));
  EXPECT_THAT(decisions[1].ranks, SizeIs(1));
}

}  // namespace
}  // namespace terrace
