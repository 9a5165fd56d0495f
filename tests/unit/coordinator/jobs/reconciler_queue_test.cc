// The queue with workers and a clock: backfill, estimates, fair share and quotas.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class ReconcilerQueueTest : public ReconcilerTest {
 protected:
  std::string SubmitOf(const std::string& owner, const std::string& name, uint32_t devices = 1) {
    const v1::JobSpec spec = Spec(name, devices);
    const auto job = reconciler_->Submit(spec, PrepareFake(spec, *reconciler_->BudgetNow(spec)),
                                         {.owner = owner});
    EXPECT_TRUE(job.ok()) << job.status();
    Settle();
    return job.ok() ? job->id() : "";
  }
  // Of `steps` steps, a second each.
  static v1::JobSpec Steps(const std::string& name, uint32_t devices, int64_t steps) {
    v1::JobSpec spec = Spec(name, devices);
    spec.mutable_train()->set_steps(steps);
    return spec;
  }
  void StartWith(const QueueOptions& options) {
    reconciler_ =
        std::make_unique<Reconciler>(Reconciler::Timing{}, store_, clock_, *this, options);
    ASSERT_TRUE(reconciler_->Load().ok());
    for (auto& [name, worker] : workers_) Connect(*worker);
  }
};

TEST_F(ReconcilerQueueTest, AShortJobStartsBeforeALargeOneThatWaits) {
  AddWorker("w0", 2);
  const std::string runs = RunningJob(Steps("runs", 1, 100));
  const std::string large = Submit(Steps("large", 2, 10));
  EXPECT_EQ(JobNow(large).estimated_start_unix_ms(), clock_.UnixMillis() + 100'000);
  EXPECT_THAT(JobNow(large).estimate(), HasSubstr("by the planned ends"));
  const std::string longer = Submit(Steps("longer", 1, 101));
  EXPECT_EQ(JobNow(longer).state(), v1::QUEUED);
  ASSERT_EQ(JobNow(longer).waits_size(), 2);
  EXPECT_EQ(JobNow(longer).waits(0).reason(), v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_EQ(JobNow(longer).waits(1).reason(), v1::REASON_PRIORITY);
  EXPECT_EQ(JobNow(longer).waits(1).message(), "job " + large + " is ahead of it");
  EXPECT_EQ(JobNow(longer).reason(), v1::REASON_WAITING_FOR_DEVICES);
  const std::string shorter = Submit(Steps("shorter", 1, 100));
  EXPECT_EQ(JobNow(shorter).state(), v1::STARTING);
  v1::JobSpec limited = Steps("limited", 1, 5000);
  limited.set_time_limit_seconds(50);
  ASSERT_TRUE(reconciler_->Cancel(shorter, true).ok());
  Settle();
  EXPECT_EQ(JobNow(Submit(limited)).state(), v1::STARTING) << "its time limit lets it";
}

TEST_F(ReconcilerQueueTest, TheEstimateFollowsTheStepsThatAreMeasured) {
  AddWorker("w0", 1);
  const std::string runs = RunningJob(Steps("runs", 1, 100));
  const std::string waits = Submit(Steps("waits", 1, 10));
  v1::Progress& progress = *RankOf("w0", runs, 0).mutable_progress();
  progress.set_step(90);
  progress.set_step_seconds(3);
  Pass(11'000);  // a queue in which nothing happens is looked through every 10 s
  const int64_t in_ms = JobNow(waits).estimated_start_unix_ms() - clock_.UnixMillis();
  EXPECT_GT(in_ms, 15'000);
  EXPECT_LE(in_ms, 30'000);
}

TEST_F(ReconcilerQueueTest, OfTheSamePriorityWhoHadLessGoesFirst) {
  AddWorker("w0", 1);
  const std::string first = SubmitOf("alice", "first");
  Ready(first);
  Pass(60'000);
  const std::string again = SubmitOf("alice", "again");
  const std::string other = SubmitOf("bob", "other");
  EXPECT_GT(JobNow(other).priority(), JobNow(again).priority());
  StartWith({});
  ASSERT_TRUE(reconciler_->Cancel(first, true).ok());
  Settle();
  EXPECT_EQ(JobNow(other).state(), v1::STARTING);
  EXPECT_EQ(JobNow(again).state(), v1::QUEUED);
  StartWith({});  // what was used is stored
  const v1::ListSharesResponse shares = reconciler_->Shares();
  ASSERT_EQ(shares.shares_size(), 2);
  EXPECT_EQ(shares.shares(0).owner(), "alice");
  EXPECT_NEAR(shares.shares(0).device_seconds(), 60, 2);
  EXPECT_EQ(shares.shares(0).jobs_waiting(), 1u);
  EXPECT_EQ(shares.shares(1).devices(), 1u);
  EXPECT_LT(shares.shares(0).fair_share_factor(), shares.shares(1).fair_share_factor());
  EXPECT_EQ(shares.half_life_seconds(), 7 * 86'400);
}

TEST_F(ReconcilerQueueTest, AgeGoesBeforeFairShareInTheEnd) {
  AddWorker("w0", 1);
  StartWith({.priority_age_seconds = 60});
  const std::string first = SubmitOf("alice", "first");
  Ready(first);
  const std::string again = SubmitOf("alice", "again");
  Pass(90'000);
  const std::string other = SubmitOf("bob", "other");
  EXPECT_GT(JobNow(again).priority(), JobNow(other).priority());
}

TEST_F(ReconcilerQueueTest, AQuotaIsPerUserAndWaitsForTheUsersOwnJobs) {
  AddWorker("w0", 4);
  StartWith({.devices_quota = 2, .devices_quota_of = {{"carol", 3}}});
  const std::string first = SubmitOf("alice", "first", 2);
  const std::string second = SubmitOf("alice", "second", 1);
  EXPECT_EQ(JobNow(second).reason(), v1::REASON_QUOTA);
  EXPECT_EQ(JobNow(second).message(),
            "needs 1 device; jobs of alice hold 2 of the 2 that the quota allows, and needs 1 "
            "worker with 1 device and 1 thread a device; 2 of the 4 devices on 1 matching worker "
            "are free now");
  EXPECT_EQ(JobNow(SubmitOf("bob", "other", 2)).state(), v1::STARTING);
  ASSERT_TRUE(reconciler_->Cancel(first, true).ok());
  Settle();
  EXPECT_EQ(JobNow(second).state(), v1::STARTING);
  EXPECT_EQ(reconciler_->Shares().shares(0).devices_quota(), 2u);
  EXPECT_EQ(JobNow(Submit(Spec("nobody", 1))).state(), v1::STARTING) << "no owner, no quota";
}

TEST_F(ReconcilerQueueTest, AQuotaOfMemoryCountsWhatAllRanksAreToHold) {
  AddWorker("w0", 8);
  QueueOptions options;
  options.bytes_quota[1] = int64_t{3} << 30;
  options.bytes_quota_of[1]["carol"] = 0;
  StartWith(options);
  const auto submit = [this](const std::string& owner, uint32_t devices) {
    const v1::JobSpec spec = Spec("a", devices);
    auto planned = PrepareFake(spec, *reconciler_->BudgetNow(spec));
    v1::StageMemory& host = *planned->plan.add_memory();
    host.set_tier(v1::HOST);
    host.set_arena_bytes(int64_t{1} << 30);
    const auto job = reconciler_->Submit(spec, planned, {.owner = owner});
    EXPECT_TRUE(job.ok()) << job.status();
    Settle();
    return job->id();
  };
  const std::string first = submit("alice", 2);
  EXPECT_EQ(JobNow(first).state(), v1::STARTING);
  const std::string second = submit("alice", 2);
  EXPECT_EQ(JobNow(second).reason(), v1::REASON_QUOTA);
  EXPECT_THAT(JobNow(second).message(),
              HasSubstr("needs 2.0 GiB of host memory; jobs of alice hold 2.0 GiB of the 3.0 GiB "
                        "that the quota allows, and"));
  EXPECT_THAT(JobNow(submit("alice", 4)).message(),
              HasSubstr("it starts only when the quota is raised"));
  EXPECT_EQ(JobNow(submit("bob", 1)).state(), v1::STARTING);
  EXPECT_EQ(JobNow(submit("carol", 4)).state(), v1::STARTING) << "any number";
  const v1::Share alice = reconciler_->Shares().shares(0);
  EXPECT_EQ(alice.memory(1).tier(), "host");
  EXPECT_EQ(alice.memory(1).bytes(), int64_t{2} << 30);
  EXPECT_EQ(alice.memory(1).bytes_quota(), int64_t{3} << 30);
  ASSERT_TRUE(reconciler_->Cancel(first, true).ok());
  Settle();
  EXPECT_EQ(JobNow(second).state(), v1::STARTING);
}

}  // namespace
}  // namespace terrace
