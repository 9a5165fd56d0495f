// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/queue/cluster.h"

namespace terrace {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr int64_t kMinute = 60'000;

TEST(QueueTest, AJobThatIsPlannedToEndBeforeTheReservationStartsFirst) {
  // The large job starts when the one that holds device 0 is planned to end.
  const std::vector<QueueNode> nodes = {WorkerOf("w", {10 * kMinute, 0})};
  const auto decisions =
      Decide({JobOf("large", 2, kMinute), JobOf("short", 1, 10 * kMinute)}, nodes);
  EXPECT_THAT(decisions[0].ranks, IsEmpty());
  EXPECT_EQ(decisions[0].waits->starts_ms, kQueueNowMs + 10 * kMinute);
  ASSERT_THAT(decisions[1].ranks, SizeIs(1));
  EXPECT_EQ(decisions[1].ranks[0].device, 1u);
}

TEST(QueueTest, AJobThatWouldDelayTheReservationWaitsBehindIt) {
  const std::vector<QueueNode> nodes = {WorkerOf("w", {10 * kMinute, 0})};
  for (const int64_t planned : {10 * kMinute + 1, kUnknownMs}) {
    const auto decisions = Decide({JobOf("large", 2, kMinute), JobOf("long", 1, planned)}, nodes);
    ASSERT_THAT(decisions[1].ranks, IsEmpty());
    ASSERT_THAT(decisions[1].waits->reasons, SizeIs(2));
    EXPECT_EQ(decisions[1].waits->reasons[1].what, WaitFor::kPriority);
    EXPECT_EQ(decisions[1].waits->reasons[1].text, "job large is ahead of it");
    EXPECT_EQ(decisions[1].waits->starts_ms, kQueueNowMs + 11 * kMinute)
        << "when the large one is planned to end";
  }
}

TEST(QueueTest, DevicesThatTheReservationDoesNotNeedAreForEverybody) {
  const std::vector<QueuedJob> jobs = {JobOf("large", 3, kMinute), JobOf("any", 1, kUnknownMs),
                                       JobOf("next", 1, kUnknownMs)};
  auto decisions = Decide(jobs, {WorkerOf("w", {10 * kMinute, 0, 0})});
  EXPECT_THAT(decisions[1].ranks, IsEmpty()) << "all three are needed";
  decisions = Decide(jobs, {WorkerOf("w", {10 * kMinute, 10 * kMinute, 0, 0})});
  EXPECT_THAT(decisions[1].ranks, SizeIs(1)) << "of four one is spare";
  EXPECT_THAT(decisions[2].ranks, IsEmpty()) << "it is taken";
}

TEST(QueueTest, WhereTheStartIsNotKnownAllThatMatchesIsKept) {
  const std::vector<QueueNode> nodes = {WorkerOf("w", {kUnknownMs, 0}), WorkerOf("x", {0})};
  const auto decisions = Decide({JobOf("large", 2, kMinute), JobOf("short", 1, 1)}, nodes);
  EXPECT_EQ(decisions[0].waits->starts_ms, kUnknownMs);
  EXPECT_THAT(decisions[0].waits->estimate, StartsWith("not known: it is not known when the jobs"));
  ASSERT_THAT(decisions[1].ranks, SizeIs(1));
  EXPECT_EQ(decisions[1].ranks[0].node, 1u) << "the worker that the large job does not match";
}

TEST(QueueTest, EachPoolOfWorkersHasAReservationOfItsOwn) {
  std::vector<QueueNode> nodes = {WorkerOf("cpu", {10, 0}), WorkerOf("gpu", {20, 0})};
  nodes[1].cuda = true;
  std::vector<QueuedJob> jobs = {JobOf("c", 2, 5), JobOf("g", 2, 5), JobOf("h", 1, 21)};
  jobs[1].need.cuda = jobs[2].need.cuda = true;
  const auto decisions = Decide(jobs, nodes);
  EXPECT_EQ(decisions[1].waits->starts_ms, kQueueNowMs + 20);
  EXPECT_THAT(decisions[1].waits->reasons, SizeIs(1)) << "nobody is ahead of it";
  EXPECT_THAT(decisions[2].ranks, IsEmpty());
  EXPECT_THAT(decisions[2].waits->reasons[1].text, "job g is ahead of it");
}

TEST(QueueTest, TheOrderIsByPriorityThenBySubmission) {
  std::vector<QueuedJob> jobs = {JobOf("young", 1, 5), JobOf("old", 1, 5), JobOf("urgent", 1, 5)};
  jobs[0].submitted_ms = 3;
  jobs[1].submitted_ms = 1;
  jobs[2].submitted_ms = 2;
  jobs[2].priority = 0.5;
  const auto decisions = Decide(jobs, {WorkerOf("w", {0})});
  EXPECT_EQ(decisions[0].job, 2u);
  EXPECT_THAT(decisions[0].ranks, SizeIs(1));
  EXPECT_EQ(decisions[1].job, 1u);
  EXPECT_EQ(decisions[2].job, 0u);
}

TEST(QueueTest, AJobThatNoWorkerCouldHoldKeepsNothing) {
  const auto decisions =
      Decide({JobOf("huge", 4, 5), JobOf("small", 1, kUnknownMs)}, {WorkerOf("w", {0, 10})});
  EXPECT_EQ(decisions[0].waits->reasons[0].what, WaitFor::kWorker);
  EXPECT_EQ(decisions[0].waits->estimate, "not known: no worker could hold it");
  EXPECT_THAT(decisions[1].ranks, SizeIs(1));
}

TEST(QueueTest, StartsAreEstimatedOneAfterTheOtherAndOfTheFirstOnly) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kJobsEstimatedMax + 5; ++i) names.push_back(absl::StrCat("j", i));
  std::vector<QueuedJob> jobs;
  for (const std::string& name : names) jobs.push_back(JobOf(name, 1, 100));
  const auto decisions = Decide(jobs, {WorkerOf("w", {40})});
  for (size_t i = 0; i < kJobsEstimatedMax; ++i) {
    EXPECT_EQ(decisions[i].waits->starts_ms, kQueueNowMs + 40 + 100 * static_cast<int64_t>(i));
    EXPECT_THAT(decisions[i].waits->estimate, HasSubstr("planned ends"));
  }
  for (size_t i = kJobsEstimatedMax; i < jobs.size(); ++i) {
    EXPECT_EQ(decisions[i].waits->starts_ms, kUnknownMs);
    EXPECT_THAT(decisions[i].waits->estimate, HasSubstr("only of the first 32 jobs"));
    EXPECT_THAT(decisions[i].waits->reasons.back().text, EndsWith("job j0 is ahead of it"));
  }
  EXPECT_EQ(decisions[jobs.size() - 1].waits, decisions[jobs.size() - 2].waits) << "one story";
}

TEST(QueueTest, AShorterJobBehindALongerOneOfTheSameNeedIsTried) {
  const auto decisions = Decide({JobOf("large", 2, 5), JobOf("long", 1, 11), JobOf("short", 1, 10)},
                                {WorkerOf("w", {10, 0})});
  EXPECT_THAT(decisions[1].ranks, IsEmpty());
  EXPECT_THAT(decisions[2].ranks, SizeIs(1));
}

}  // namespace
}  // namespace terrace
