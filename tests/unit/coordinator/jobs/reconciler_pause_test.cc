// Pausing and resuming with workers, restarts of the coordinator, planners and other jobs.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class ReconcilerPauseTest : public ReconcilerTest {
 protected:
  absl::Status Pause(const std::string& job, bool force = false) {
    const absl::Status status = reconciler_->Pause(job, force).status();
    Settle();
    return status;
  }
  absl::Status Resume(const std::string& job) {
    const absl::Status status = reconciler_->Resume(job).status();
    Settle();
    return status;
  }
  void TellStep(const std::string& worker, const std::string& job, int64_t step,
                int64_t checkpoint_step) {
    v1::Progress& progress = *RankOf(worker, job, 0).mutable_progress();
    progress.set_step(step);
    progress.set_checkpoint_step(checkpoint_step);
    Settle();
  }
  void RestartCoordinator() {
    StartCoordinator();
    for (auto& [name, worker] : workers_) Connect(*worker);
  }
  double Spent(const std::string& job, std::string_view cause) {
    const v1::Job now = JobNow(job);
    for (const v1::SpentTime& spent : now.spent()) {
      if (spent.cause() == cause) return spent.seconds();
    }
    return 0;
  }
};

TEST_F(ReconcilerPauseTest, APausedJobFreesItsDevicesForTheNextAndTakesItsTurnWhenResumed) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  const std::string next = Submit(Spec("b"));
  EXPECT_EQ(JobNow(next).state(), v1::QUEUED);
  TellStep("w0", job, 7, 7);
  ASSERT_TRUE(Pause(job).ok());
  EXPECT_EQ(JobNow(job).state(), v1::PAUSED);
  EXPECT_EQ(JobNow(job).progress().step(), 7);
  EXPECT_FALSE(w0.ranks.contains({job, 0})) << "its worker was told to forget it";
  EXPECT_EQ(JobNow(next).state(), v1::STARTING);
  EXPECT_EQ(reconciler_->Stats().jobs.at(v1::PAUSED), 1);
  EXPECT_TRUE(reconciler_->Stats().pending.empty()) << "a paused job waits for nothing";

  const std::string last = Submit(Spec("c"));
  ASSERT_TRUE(Resume(job).ok());
  EXPECT_EQ(JobNow(job).state(), v1::QUEUED);
  EXPECT_EQ(JobNow(job).reason(), v1::REASON_WAITING_FOR_DEVICES);
  ASSERT_TRUE(reconciler_->Cancel(next, /*force=*/true).ok());
  Settle();
  EXPECT_EQ(JobNow(job).state(), v1::STARTING) << "it was submitted before the last one";
  EXPECT_EQ(JobNow(job).epoch(), 2);
  EXPECT_EQ(JobNow(last).state(), v1::QUEUED);
}

TEST_F(ReconcilerPauseTest, AHeldJobIsNeverPlacedUntilItIsResumed) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const v1::JobSpec spec = Spec("a");
  const auto held =
      reconciler_->Submit(spec, PrepareFake(spec, *reconciler_->BudgetNow(spec)), {.held = true});
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(held->state(), v1::PAUSED);
  EXPECT_EQ(held->reason(), v1::REASON_PAUSED_BY_USER);
  EXPECT_THAT(held->message(), HasSubstr("takes its place in the queue when it is resumed"));
  EXPECT_EQ(held->paused_unix_ms(), held->submitted_unix_ms());
  EXPECT_EQ(reconciler_->Stats().jobs[v1::PAUSED], 1);
  EXPECT_EQ(reconciler_->Stats().jobs[v1::QUEUED], 0);
  const auto events = store_.Events(held->id(), 0, 10);
  ASSERT_TRUE(events.ok());
  EXPECT_EQ(events->size(), 1u) << "it was never in the queue";
  RestartCoordinator();
  Pass(60'000);
  EXPECT_EQ(JobNow(held->id()).state(), v1::PAUSED);
  EXPECT_TRUE(w0.ranks.empty());
  EXPECT_EQ(JobNow(Submit(Spec("b"))).state(), v1::STARTING) << "the worker is free for others";
  ASSERT_TRUE(Resume(held->id()).ok());
  EXPECT_EQ(JobNow(held->id()).reason(), v1::REASON_WAITING_FOR_DEVICES);
}

TEST_F(ReconcilerPauseTest, AJobThatIsHeldBeforeAnyWorkerIsPlannedWhenItIsResumed) {
  const v1::JobSpec spec = Spec("a");
  const auto held =
      reconciler_->Submit(spec, reconciler_->BudgetNow(spec).status(), {.held = true});
  ASSERT_TRUE(held.ok()) << held.status();
  AddWorker("w0", 1);
  Pass(60'000);
  EXPECT_EQ(JobNow(held->id()).state(), v1::PAUSED);
  EXPECT_FALSE(JobNow(held->id()).has_plan());
  ASSERT_TRUE(Resume(held->id()).ok());
  Settle();
  EXPECT_EQ(JobNow(held->id()).state(), v1::STARTING);
}

TEST_F(ReconcilerPauseTest, APauseOutlivesTheCoordinatorAndTheWorker) {
  AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  ASSERT_TRUE(Pause(job).ok());
  RestartCoordinator();
  Pass(60'000);
  EXPECT_EQ(JobNow(job).state(), v1::PAUSED);
  EXPECT_EQ(JobNow(job).epoch(), 1);
  Disconnect(*workers_["w0"]);
  Pass(60'000);
  EXPECT_EQ(JobNow(job).state(), v1::PAUSED) << "nothing of it was on the lost worker";
  EXPECT_EQ(JobNow(job).restarts(), 0);
  AddWorker("w1", 1);
  ASSERT_TRUE(Resume(job).ok());
  EXPECT_EQ(JobNow(job).state(), v1::STARTING);
  EXPECT_EQ(JobNow(job).placement().ranks(0).worker(), "w1");
}

TEST_F(ReconcilerPauseTest, ACoordinatorThatDiesWhileAJobStopsPausesItAfterwards) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  w0.deaf = true;
  ASSERT_TRUE(Pause(job).ok());
  EXPECT_EQ(JobNow(job).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(job).message(), "pauses after a checkpoint");
  w0.deaf = false;
  RestartCoordinator();
  EXPECT_EQ(JobNow(job).state(), v1::PAUSED);
}

TEST_F(ReconcilerPauseTest, AWorkerThatIsLostWhileAJobStopsLeavesItPaused) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  w0.deaf = true;
  ASSERT_TRUE(Pause(job).ok());
  Disconnect(w0);
  AddWorker("w1", 1);
  Pass(5000);
  EXPECT_EQ(JobNow(job).state(), v1::PAUSED);
  EXPECT_THAT(JobNow(job).message(), HasSubstr("w0"));
  EXPECT_EQ(reconciler_->Stats().restarts.at(v1::REASON_WORKER_LOST), 1);
}

TEST_F(ReconcilerPauseTest, AForcedPauseGoesOnAfterItsOldRanksHaveEnded) {
  FakeWorker& w0 = AddWorker("w0", 2);
  const std::string job = RunningJob(Spec("a"));
  TellStep("w0", job, 9, 5);
  w0.deaf = true;  // its ranks take their time to die
  ASSERT_TRUE(Pause(job, /*force=*/true).ok());
  EXPECT_EQ(JobNow(job).state(), v1::PAUSED);
  ASSERT_TRUE(Resume(job).ok());
  EXPECT_EQ(JobNow(job).state(), v1::QUEUED) << "though a device is free";
  w0.deaf = false;
  Pass(2000);
  EXPECT_EQ(JobNow(job).state(), v1::STARTING);
}

TEST_F(ReconcilerPauseTest, StepsThatAForcedPauseLostAreRepeatedAlsoAfterARestartOfTheCoordinator) {
  AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  v1::WorkerMessage told;
  v1::JobEvent& event = *told.add_events();
  event.set_job(job);
  event.set_epoch(1);
  event.mutable_step()->set_step(9);
  Say(*workers_["w0"], told);
  TellStep("w0", job, 9, 5);
  ASSERT_TRUE(Pause(job, /*force=*/true).ok());
  ASSERT_TRUE(Resume(job).ok());
  TellStep("w0", job, 5, 5);
  Pass(2000);
  RestartCoordinator();
  Ready(job);
  ASSERT_EQ(JobNow(job).state(), v1::RUNNING);
  clock_.AdvanceMillis(3000);
  TellStep("w0", job, 8, 5);
  EXPECT_DOUBLE_EQ(Spent(job, "training"), 0);
  EXPECT_GE(Spent(job, "repeated"), 3);
  const double repeated = Spent(job, "repeated");
  clock_.AdvanceMillis(4000);
  TellStep("w0", job, 12, 5);
  EXPECT_DOUBLE_EQ(Spent(job, "repeated"), repeated + 1) << "step 9; those after it are new";
  EXPECT_DOUBLE_EQ(Spent(job, "training"), 3);
}

TEST_F(ReconcilerPauseTest, AForcedPauseForgetsWhatItsGangWasAboutToEndFor) {
  FakeWorker& w0 = AddWorker("w0", 2);
  const std::string job = RunningJob(Spec("a", 2));
  w0.deaf = true;
  v1::RankReport& report = RankOf("w0", job, 0);
  report.set_state(v1::RANK_FAILED);
  report.set_reason(v1::REASON_DATA_ERROR);
  Settle();
  ASSERT_EQ(JobNow(job).state(), v1::RUNNING) << "it hears the last words of the other rank";
  ASSERT_TRUE(Pause(job, /*force=*/true).ok());
  w0.deaf = false;
  Pass(3000);
  ASSERT_TRUE(Resume(job).ok());
  Ready(job);
  Pass(5000);
  EXPECT_EQ(JobNow(job).state(), v1::RUNNING);
}

TEST_F(ReconcilerPauseTest, AJobThatWaitsForItsPlanKeepsItWhenItComesAndRunsOnlyWhenResumed) {
  const std::string job = Submit(Spec("a"));
  EXPECT_EQ(JobNow(job).reason(), v1::REASON_NO_MATCHING_WORKER);
  ASSERT_TRUE(Pause(job).ok());
  AddWorker("w0", 1);
  Pass(5000);
  EXPECT_EQ(JobNow(job).state(), v1::PAUSED);
  EXPECT_FALSE(JobNow(job).has_plan());
  ASSERT_TRUE(Resume(job).ok());
  EXPECT_TRUE(JobNow(job).has_plan());
  EXPECT_EQ(JobNow(job).state(), v1::STARTING);
}

TEST_F(ReconcilerPauseTest, AWaitBeginsAnewWithTheResumption) {
  const int64_t submitted = clock_.UnixMillis();
  const std::string job = Submit(Spec("a"));
  ASSERT_TRUE(Pause(job).ok());
  Pass(600'000);
  ASSERT_TRUE(Resume(job).ok());
  EXPECT_GE(reconciler_->Stats().pending_since_unix_ms.at(v1::REASON_NO_MATCHING_WORKER),
            submitted + 600'000);
  AddWorker("w0", 1);
  ASSERT_EQ(JobNow(job).state(), v1::STARTING);
  EXPECT_LT(reconciler_->Stats().queue_seconds.sum(), 1);
}

// Alerts measure the age of its checkpoint from there: while it waited nothing was lost.
TEST_F(ReconcilerPauseTest, ItTrainsSinceItsFirstStepAfterTheWaitThatFollowsAPause) {
  AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  const auto trains_since = [&]() -> int64_t {
    for (const JobStats& shown : reconciler_->Stats().shown) {
      if (shown.id == job) return shown.training_since_unix_ms;
    }
    return -1;
  };
  EXPECT_EQ(trains_since(), 0) << "it has done no step";
  RankOf("w0", job, 0).mutable_progress()->set_step(5);
  Pass(1000);
  EXPECT_GT(trains_since(), 0);
  ASSERT_TRUE(Pause(job).ok());
  const std::string other = RunningJob(Spec("b"));
  ASSERT_TRUE(Resume(job).ok());
  Pass(600'000);
  EXPECT_EQ(trains_since(), 0) << "it waits for devices";
  ASSERT_TRUE(reconciler_->Cancel(other, /*force=*/true).ok());
  Pass(1000);
  Ready(job);
  const int64_t started = clock_.UnixMillis();
  RankOf("w0", job, 0).mutable_progress()->set_step(6);
  Pass(1000);
  EXPECT_GE(trains_since(), started);
  const int64_t since = trains_since();
  RankOf("w0", job, 0).mutable_progress()->set_step(7);
  Pass(1000);
  EXPECT_EQ(trains_since(), since);
}

TEST_F(ReconcilerPauseTest, ItsCheckpointDirectoryStaysItsOwn) {
  AddWorker("w0", 1);
  v1::JobSpec spec = Spec("a");
  spec.mutable_checkpoint()->set_directory("/checkpoints");
  const std::string job = RunningJob(spec);
  ASSERT_TRUE(Pause(job).ok());
  const auto other = reconciler_->Submit(spec, absl::NotFoundError("none"));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("(PAUSED)"));
}

TEST_F(ReconcilerPauseTest, WhatIsUnknownOrHasEndedIsSaid) {
  AddWorker("w0", 1);
  EXPECT_EQ(Pause("no-1").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Resume("no-1").code(), absl::StatusCode::kNotFound);
  const std::string job = RunningJob(Spec("a"));
  ASSERT_TRUE(Pause(job).ok());
  ASSERT_TRUE(reconciler_->Cancel(job, /*force=*/false).ok());
  EXPECT_EQ(JobNow(job).state(), v1::CANCELLED) << "there is nothing to wait for";
  for (const absl::Status& status : {Pause(job), Resume(job)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("CANCELLED: it has ended already"));
  }
}

TEST_F(ReconcilerPauseTest, WithoutTheStoreNothingIsPaused) {
  AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  store_.full = true;
  EXPECT_FALSE(Pause(job).ok());
  store_.full = false;
  EXPECT_EQ(JobNow(job).state(), v1::RUNNING);
  EXPECT_FALSE(JobNow(job).pause_requested());
}

}  // namespace
}  // namespace terrace
