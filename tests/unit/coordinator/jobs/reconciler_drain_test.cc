// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class DrainTest : public ReconcilerTest {
 protected:
  absl::StatusOr<v1::DrainedNode> Drain(const std::string& node, int64_t deadline_ms = 600'000,
                                        bool keep_jobs = false) {
    v1::DrainRequest request;
    request.set_node(node);
    request.set_reason("kernel update");
    request.set_deadline_ms(deadline_ms);
    request.set_keep_jobs(keep_jobs);
    auto drained = reconciler_->Drain(request, "a test");
    Settle();
    return drained;
  }
  void Undrain(const std::string& node) {
    EXPECT_TRUE(reconciler_->Undrain(node, "a test").ok());
    Settle();
  }
  std::string StateOf(const std::string& node) {
    for (const v1::Node& one : reconciler_->Nodes()) {
      if (one.name() == node) return one.state();
    }
    return "";
  }
  std::string WorkerOf(const std::string& job) { return JobNow(job).placement().ranks(0).worker(); }
  // Ranks tell a checkpoint, as they do before they end for a stop.
  void TellCheckpoint(const std::string& worker, const std::string& job, int64_t step) {
    v1::Progress& progress = *RankOf(worker, job, 0).mutable_progress();
    progress.set_step(step);
    progress.set_checkpoint_step(step);
  }
  bool WasStopped(const std::string& worker, bool with_checkpoint) {
    for (const v1::CoordinatorMessage& message : workers_[worker]->received) {
      if (message.has_stop() && message.stop().checkpoint() == with_checkpoint) return true;
    }
    return false;
  }
};

TEST_F(DrainTest, NoJobIsPlacedOnADrainedWorker) {
  AddWorker("w0", 1);
  ASSERT_TRUE(Drain("w0").ok());
  EXPECT_EQ(StateOf("w0"), "drained");
  const std::string job = Submit(Spec("a"));
  EXPECT_EQ(JobNow(job).state(), v1::QUEUED);
  EXPECT_EQ(JobNow(job).reason(), v1::REASON_NO_MATCHING_WORKER);
  EXPECT_THAT(JobNow(job).message(), HasSubstr("worker w0 is drained"));
  EXPECT_THAT(JobNow(job).message(), HasSubstr("terrace drain w0 --disable"));
  Undrain("w0");
  EXPECT_EQ(StateOf("w0"), "ready");
  EXPECT_EQ(JobNow(job).state(), v1::STARTING);
}

TEST_F(DrainTest, AJobMovesToAnotherWorkerAfterACheckpointAndNoRestartIsCountedAgainstIt) {
  AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  AddWorker("w1", 1);
  TellCheckpoint("w0", job, 7);
  Settle();
  const auto drained = Drain("w0");
  ASSERT_TRUE(drained.ok()) << drained.status();
  EXPECT_EQ(drained->state(), "draining");
  ASSERT_EQ(drained->jobs_size(), 1);
  EXPECT_EQ(drained->jobs(0), job);
  EXPECT_TRUE(WasStopped("w0", /*with_checkpoint=*/true));
  EXPECT_EQ(JobNow(job).state(), v1::STARTING);
  EXPECT_EQ(WorkerOf(job), "w1");
  EXPECT_EQ(JobNow(job).restarts_without_progress(), 0);
  ASSERT_EQ(JobNow(job).last_restarts_size(), 1);
  EXPECT_EQ(JobNow(job).last_restarts(0).message(), "worker w0 is drained (kernel update)");
  EXPECT_EQ(JobNow(job).last_restarts(0).step(), 7);
  EXPECT_EQ(reconciler_->Stats().restarts.at(v1::REASON_NONE), 1);
  EXPECT_EQ(StateOf("w0"), "drained");
}

// Its ranks have not done a step of their own yet.
TEST_F(DrainTest, AJobThatMovesWhileItStartsStandsAtItsCheckpoint) {
  AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  AddWorker("w1", 1);
  TellCheckpoint("w0", job, 7);
  Settle();
  ASSERT_TRUE(Drain("w0").ok());
  ASSERT_EQ(JobNow(job).state(), v1::STARTING);
  ASSERT_EQ(WorkerOf(job), "w1");
  Pass(1000);
  EXPECT_EQ(JobNow(job).progress().step(), 7);
  ASSERT_TRUE(Drain("w1").ok());
  EXPECT_EQ(JobNow(job).state(), v1::RECOVERING);
  EXPECT_EQ(JobNow(job).progress().step(), 7);
  EXPECT_EQ(JobNow(job).progress().checkpoint_step(), 7);
}

TEST_F(DrainTest, AJobSaysThatItMovesWhileItWritesItsCheckpoint) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  w0.deaf = true;  // it takes its time
  ASSERT_TRUE(Drain("w0").ok());
  EXPECT_EQ(JobNow(job).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(job).message(),
            "moves after a checkpoint: worker w0 is drained (kernel update)");
  EXPECT_EQ(StateOf("w0"), "draining");
  Undrain("w0");
  EXPECT_EQ(JobNow(job).message(), "");
}

TEST_F(DrainTest, AfterTheDeadlineAJobMovesWithoutACheckpoint) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  w0.deaf = true;
  ASSERT_TRUE(Drain("w0", /*deadline_ms=*/5000).ok());
  Pass(4000);
  EXPECT_EQ(JobNow(job).state(), v1::RUNNING);
  w0.deaf = false;
  for (auto& [key, report] : w0.ranks) report.set_state(v1::RANK_RUNNING);
  w0.received.clear();
  clock_.AdvanceMillis(2000);
  reconciler_->Pass();
  EXPECT_EQ(JobNow(job).state(), v1::RECOVERING);
  EXPECT_THAT(JobNow(job).message(), HasSubstr("goes on elsewhere from the beginning"));
  Settle();
  EXPECT_TRUE(WasStopped("w0", /*with_checkpoint=*/false));
  EXPECT_TRUE(w0.ranks.empty());
  EXPECT_EQ(JobNow(job).restarts_without_progress(), 0);
}

TEST_F(DrainTest, ADeadlineOfZeroMovesJobsAtOnce) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string job = RunningJob(Spec("a"));
  AddWorker("w1", 1);
  w0.received.clear();
  ASSERT_TRUE(Drain("w0", /*deadline_ms=*/0).ok());
  EXPECT_FALSE(WasStopped("w0", /*with_checkpoint=*/true));
  EXPECT_EQ(JobNow(job).state(), v1::STARTING);
  EXPECT_EQ(WorkerOf(job), "w1");
}

TEST_F(DrainTest, JobsThatAreKeptOrSaveNothingRunOnUntilTheDeadline) {
  for (const bool keep_jobs : {true, false}) {
    SCOPED_TRACE(keep_jobs);
    const std::string node = absl::StrCat("w", keep_jobs);
    AddWorker(node, 1);
    v1::JobSpec spec = Spec("a");
    if (!keep_jobs) spec.mutable_checkpoint()->set_save("never");
    const std::string job = RunningJob(spec);
    ASSERT_TRUE(Drain(node, 60'000, keep_jobs).ok());
    Pass(3000);
    EXPECT_EQ(JobNow(job).state(), v1::RUNNING);
    EXPECT_FALSE(WasStopped(node, true));
    clock_.AdvanceMillis(60'000);
    for (auto& [name, worker] : workers_) Say(*worker, worker->Heartbeat());
    reconciler_->Pass();
    EXPECT_NE(JobNow(job).state(), v1::RUNNING);
    EXPECT_TRUE(reconciler_->Cancel(job, true).ok());
    Settle();
  }
}

TEST_F(DrainTest, OneDrainedWorkerMovesTheWholeGang) {
  AddWorker("w0", 1);
  AddWorker("w1", 1);
  const std::string job = RunningJob(Spec("a", 1, 2));
  ASSERT_TRUE(Drain("w1").ok());
  EXPECT_TRUE(WasStopped("w0", true));
  EXPECT_TRUE(WasStopped("w1", true));
  EXPECT_EQ(JobNow(job).state(), v1::RECOVERING);
  EXPECT_EQ(JobNow(job).reason(), v1::REASON_NO_MATCHING_WORKER);
  EXPECT_THAT(JobNow(job).message(), HasSubstr("1 of the 1 registered matches, 1 more is drained"));
  AddWorker("w2", 1);
  EXPECT_EQ(JobNow(job).state(), v1::STARTING);
}

TEST_F(DrainTest, AJobThatStartsMovesAtOnceAndOneThatIsCancelledEnds) {
  AddWorker("w0", 1);
  const std::string starting = Submit(Spec("a"));
  AddWorker("w1", 1);
  ASSERT_TRUE(Drain("w0").ok());
  EXPECT_EQ(WorkerOf(starting), "w1");
  Ready(starting);
  workers_["w1"]->deaf = true;
  ASSERT_TRUE(reconciler_->Cancel(starting, false).ok());
  ASSERT_TRUE(Drain("w1", 0).ok());
  EXPECT_EQ(JobNow(starting).state(), v1::CANCELLED);
}

TEST_F(DrainTest, ADrainOutlivesTheCoordinatorAndTheWorker) {
  AddWorker("w0", 1);
  ASSERT_TRUE(Drain("w0").ok());
  StartCoordinator();
  ASSERT_EQ(reconciler_->Drains().size(), 1u);
  EXPECT_EQ(reconciler_->Drains()[0].drain().asked_by(), "a test");
  Connect(*workers_["w0"]);
  EXPECT_EQ(StateOf("w0"), "drained");
  EXPECT_EQ(JobNow(Submit(Spec("a"))).state(), v1::QUEUED);
}

TEST_F(DrainTest, ADrainUntilTheRestartEndsWithAnotherProcessOfTheWorker) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const auto registers = [&](const std::string& instance) {
    EXPECT_TRUE(reconciler_->WorkerRegistered(w0.node(), ++last_session_, instance).ok());
    sessions_["w0"] = last_session_;
    Settle();
  };
  registers("first");
  v1::DrainRequest request;
  request.set_node("w0");
  request.set_until_restart(true);
  ASSERT_TRUE(reconciler_->Drain(request, "a test").ok());
  registers("first");  // it has dialled again
  EXPECT_EQ(StateOf("w0"), "drained");
  StartCoordinator();
  registers("first");
  EXPECT_EQ(StateOf("w0"), "drained");
  Disconnect(w0);
  registers("second");
  EXPECT_EQ(StateOf("w0"), "ready");
  EXPECT_TRUE(store_.Drains()->empty());
}

TEST_F(DrainTest, WhatCannotBeDoneIsSaid) {
  EXPECT_THAT(Drain("w0").status().message(), HasSubstr("no worker w0: `terrace nodes` lists"));
  EXPECT_EQ(reconciler_->Undrain("w0", "").status().code(), absl::StatusCode::kNotFound);
  AddWorker("w0", 1);
  EXPECT_EQ(Drain("w0", -1).status().code(), absl::StatusCode::kInvalidArgument);
  v1::DrainRequest request;
  request.set_node("w0");
  request.set_reason(std::string(kDrainReasonBytesMax + 1, 'x'));
  EXPECT_EQ(reconciler_->Drain(request, "").status().code(), absl::StatusCode::kInvalidArgument);
  store_.full = true;
  EXPECT_EQ(Drain("w0").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(StateOf("w0"), "ready") << "what is not stored is not done";
  store_.full = false;
}

}  // namespace
}  // namespace terrace
