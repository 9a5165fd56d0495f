// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/reconciler.h"
#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST_F(ReconcilerTest, ADeadRankRestartsTheWholeGangInANewEpoch) {
  FakeWorker& w0 = AddWorker("w0", 2);
  const std::string id = RunningJob(Spec("a", 2));
  v1::RankReport& dead = RankOf("w0", id, 1);
  dead.set_state(v1::RANK_FAILED);
  dead.set_reason(v1::REASON_RANK_DIED);
  dead.set_message("killed by signal 9");
  Settle();
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(JobNow(id).epoch(), 2);
  EXPECT_EQ(JobNow(id).restarts(), 1);
  EXPECT_EQ(RankOf("w0", id, 0).epoch(), 2) << "the surviving rank was stopped too";
  EXPECT_EQ(w0.CountStarts(), 2);
  Ready(id);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
}

TEST_F(ReconcilerTest, WhatAStartWaitsForIsTold) {
  FakeWorker& w0 = AddWorker("w0", 2);
  const std::string id = Submit(Spec("a", 2));
  w0.SetAll(id, v1::RANK_PREPARING);
  v1::RankReport& late = RankOf("w0", id, 1);
  late.set_state(v1::RANK_STARTED);
  Pass(4000);
  EXPECT_EQ(JobNow(id).message(), "") << "as long as that it may take";
  Pass(2000);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(JobNow(id).message(), "waits for rank 1 on w0, which fetches its program");
  late.set_message("its program cannot be kept: the disk is full");
  Pass(6000);
  EXPECT_EQ(JobNow(id).message(), "rank 1 on w0: its program cannot be kept: the disk is full");
  late.clear_message();
  late.set_state(v1::RANK_PREPARING);
  Pass(6000);
  EXPECT_EQ(JobNow(id).message(), "waits for rank 0 on w0 to prepare");
  Ready(id);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).message(), "");
}

TEST_F(ReconcilerTest, ARankThatItsWorkerDoesNotTakeUpBreaksTheStart) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = Submit(Spec("a"));
  ASSERT_EQ(w0.CountStarts(), 1);
  w0.ranks.clear();
  w0.deaf = true;
  Pass(59'000);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_THAT(JobNow(id).message(), HasSubstr("has not taken up yet"));
  Pass(3000);
  EXPECT_EQ(JobNow(id).epoch(), 2) << "started again";
  EXPECT_THAT(JobNow(id).last_restarts(0).message(), HasSubstr("rank 0"));
}

TEST_F(ReconcilerTest, APlannerThatDiesOrStopsIsNoVerdictOnItsJob) {
  const std::string id = Submit(Spec("a"));
  ASSERT_EQ(JobNow(id).reason(), v1::REASON_NO_MATCHING_WORKER);
  plan_failures_ = {absl::AbortedError("killed"), absl::UnavailableError("stopping"),
                    absl::AbortedError("killed")};
  AddWorker("w0", 1);
  EXPECT_EQ(plan_failures_.size(), 2u) << "it is not tried again at once";
  Pass(8000);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_TRUE(plan_failures_.empty());
}

TEST_F(ReconcilerTest, AJobThatKillsEachOfItsPlannersFails) {
  const std::string id = Submit(Spec("a"));
  plan_failures_ = std::deque<absl::Status>(kPlannersLostMax, absl::AbortedError("killed"));
  AddWorker("w0", 1);
  Pass(5000);
  EXPECT_EQ(JobNow(id).state(), v1::FAILED);
  EXPECT_THAT(JobNow(id).message(), HasSubstr("killed"));
}

TEST_F(ReconcilerTest, ASilentWorkerIsLostAfterThreeSecondsAndItsJobMovesOn) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  ASSERT_EQ(JobNow(id).placement().ranks(0).worker(), "w0");
  AddWorker("w1", 1);
  Disconnect(w0);
  Pass(2800);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING) << "its ranks go on; it may come back";
  Pass(600);
  EXPECT_EQ(JobNow(id).placement().ranks(0).worker(), "w1");
  EXPECT_EQ(JobNow(id).epoch(), 2);
  // The lost worker returns with the rank of the old epoch.
  Connect(w0);
  EXPECT_TRUE(w0.ranks.empty()) << "fenced";
  EXPECT_EQ(JobNow(id).epoch(), 2);
}

TEST_F(ReconcilerTest, NoJobIsTouchedWhileTheCoordinatorEnds) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  AddWorker("w1", 1);
  reconciler_->Close();
  Disconnect(w0);
  Pass(10'000);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).epoch(), 1);
  EXPECT_EQ(w0.ranks.size(), 1u);
}

// The gang that follows begins again after the last checkpoint and tells those steps itself.
TEST_F(ReconcilerTest, StepsOfALostGangThatAreToldLateAreNotThoseOfTheNext) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  FakeWorker& w1 = AddWorker("w1", 1);
  Disconnect(w0);
  Pass(3400);
  ASSERT_EQ(JobNow(id).epoch(), 2);
  w1.SetAll(id, v1::RANK_READY);
  Settle();
  w1.SetAll(id, v1::RANK_RUNNING);
  Settle();
  const auto say_step = [&](FakeWorker& worker, int64_t epoch, int64_t step) {
    v1::WorkerMessage message = worker.Heartbeat();
    v1::JobEvent* event = message.add_events();
    event->set_job(id);
    event->set_epoch(epoch);
    event->mutable_step()->set_step(step);
    Say(worker, message);
  };
  say_step(w1, 2, 3);
  Connect(w0);
  say_step(w0, 1, 7);
  say_step(w1, 2, 4);
  Settle();
  std::vector<int64_t> steps;
  const absl::StatusOr<std::vector<v1::JobEvent>> events = store_.Events(id, 0, 100);
  ASSERT_TRUE(events.ok());
  for (const v1::JobEvent& event : *events) {
    if (event.has_step()) steps.push_back(event.step().step());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 4}));
}

TEST_F(ReconcilerTest, AWorkerThatReconnectsInTimeKeepsItsJobRunning) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  Disconnect(w0);
  Pass(2000);
  Connect(w0);
  Pass(5000);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).epoch(), 1);
  EXPECT_EQ(w0.CountStarts(), 1);
}

TEST_F(ReconcilerTest, ARestartedCoordinatorAdoptsWhatRunsOn) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  const std::string waiting = Submit(Spec("b"));
  const size_t commands = w0.received.size();
  StartCoordinator();
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  Pass(5000);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING) << "within the grace period nobody is lost";
  Connect(w0);
  Pass(1000);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).epoch(), 1);
  EXPECT_EQ(w0.received.size(), commands) << "it was told nothing at all";
  EXPECT_EQ(JobNow(waiting).reason(), v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_EQ(Submit(Spec("c")), "c-3") << "numbers go on";
}

TEST_F(ReconcilerTest, AWorkerThatStaysAwayAfterARestartIsLostAfterTheGracePeriod) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  StartCoordinator();
  Pass(11'000);
  EXPECT_EQ(JobNow(id).state(), v1::RECOVERING);
}

TEST_F(ReconcilerTest, ACrashBetweenWritingAndActingIsMadeUpFor) {
  FakeWorker& w0 = AddWorker("w0", 1);
  Disconnect(w0);  // so that the start command gets lost
  sessions_["w0"] = ++last_session_;
  ASSERT_TRUE(reconciler_->WorkerRegistered(w0.node(), last_session_).ok());
  const std::string id = Submit(Spec("a"));
  w0.ranks.clear();
  StartCoordinator();
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  Connect(w0);
  EXPECT_EQ(w0.ranks.size(), 1) << "the command was given again";
}

TEST_F(ReconcilerTest, TwoJobsOfOneCheckpointDirectoryAreRefusedUntilTheFirstHasEnded) {
  FakeWorker& w0 = AddWorker("w0", 1);
  v1::JobSpec spec = Spec("a");
  spec.mutable_checkpoint()->set_directory("/shared/run");
  const std::string first = RunningJob(spec);
  spec.mutable_checkpoint()->set_directory("/shared/run/");
  const auto second = reconciler_->Submit(spec, PrepareFake(spec, {}));
  EXPECT_THAT(std::string(second.status().message()),
              testing::AllOf(testing::HasSubstr("checkpoint.directory: got /shared/run/"),
                             testing::HasSubstr(first + " (RUNNING)")));
  w0.SetAll(first, v1::RANK_SUCCEEDED);
  Pass(2000);
  EXPECT_TRUE(reconciler_->Submit(spec, PrepareFake(spec, {})).ok());
}

TEST_F(ReconcilerTest, WhatCannotBeStoredIsNotDone) {
  FakeWorker& w0 = AddWorker("w0", 1);
  store_.full = true;
  EXPECT_EQ(reconciler_->Submit(Spec("a"), PrepareFake(Spec("a"), {})).status().code(),
            absl::StatusCode::kResourceExhausted);
  store_.full = false;
  const std::string blocker = RunningJob(Spec("a"));
  const std::string id = Submit(Spec("b"));
  store_.full = true;
  w0.SetAll(blocker, v1::RANK_SUCCEEDED);
  Pass(2000);
  EXPECT_EQ(w0.CountStarts(), 1) << "job b must not start before that is stored";
  EXPECT_EQ(JobNow(blocker).state(), v1::RUNNING);
  store_.full = false;
  Pass(400);
  EXPECT_EQ(JobNow(blocker).state(), v1::SUCCEEDED);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
}

// A rank tells short steps several at once: when a peer's death ends the job it holds some.
class BrokenGangTest : public ReconcilerTest {
 protected:
  // Two ranks on two workers that run, of which rank 1 has died; no restart is left.
  void Break() {
    AddWorker("w0", 1);
    AddWorker("w1", 1);
    v1::JobSpec spec = Spec("a", 1, 2);
    spec.set_max_restarts(0);
    id_ = RunningJob(spec);
    v1::RankReport& dead = RankOf("w1", id_, 1);
    dead.set_state(v1::RANK_FAILED);
    dead.set_reason(v1::REASON_RANK_DIED);
    dead.set_message("killed by signal 9");
    Say(*workers_["w1"], workers_["w1"]->Heartbeat());
    reconciler_->Pass();
  }
  void SayStepOfRank0(int64_t step) {
    v1::WorkerMessage message = workers_["w0"]->Heartbeat();
    v1::JobEvent* event = message.add_events();
    event->set_job(id_);
    event->set_epoch(1);
    event->mutable_step()->set_step(step);
    Say(*workers_["w0"], message);
  }
  // Its steps by number, its states by name.
  std::vector<std::string> Told() {
    std::vector<std::string> told;
    const std::vector<v1::JobEvent> events = *store_.Events(id_, 0, 100);
    for (const v1::JobEvent& event : events) {
      if (event.has_step()) told.push_back(absl::StrCat(event.step().step()));
      if (event.has_state()) told.push_back(v1::JobState_Name(event.state().state()));
    }
    return told;
  }

  std::string id_;
};

TEST_F(BrokenGangTest, StepsThatARankHadNotToldComeBeforeTheEndOfItsJob) {
  Break();
  EXPECT_EQ(JobNow(id_).state(), v1::RUNNING) << "rank 0 has not said its last";
  EXPECT_TRUE(workers_["w0"]->ranks.empty()) << "it was killed at once";
  SayStepOfRank0(7);
  reconciler_->Pass();
  EXPECT_EQ(JobNow(id_).state(), v1::FAILED);
  EXPECT_THAT(JobNow(id_).message(), HasSubstr("rank 1 on w1: killed by signal 9"));
  const std::vector<std::string> told = Told();
  ASSERT_GE(told.size(), 2u);
  EXPECT_EQ(std::vector<std::string>(told.end() - 2, told.end()),
            (std::vector<std::string>{"7", "FAILED"}));
}

TEST_F(BrokenGangTest, ARankThatCannotBeStoppedHoldsTheEndUpForTwoSeconds) {
  Break();
  const v1::WorkerMessage alive = [&] {
    v1::WorkerMessage message;
    v1::RankReport* report = message.mutable_heartbeat()->add_ranks();
    report->set_job(id_);
    report->set_epoch(1);
    report->set_state(v1::RANK_RUNNING);
    return message;
  }();
  for (int ms = 0; ms < 2000; ms += 200) {
    EXPECT_EQ(JobNow(id_).state(), v1::RUNNING) << ms;
    Say(*workers_["w0"], alive);
    Say(*workers_["w1"], workers_["w1"]->Heartbeat());
    reconciler_->Pass();
    clock_.AdvanceMillis(200);
  }
  Say(*workers_["w0"], alive);
  reconciler_->Pass();
  EXPECT_EQ(JobNow(id_).state(), v1::FAILED);
}

TEST_F(BrokenGangTest, TheCauseThatARankOnlyThenNamesIsTheCause) {
  Break();
  v1::WorkerMessage last;
  v1::RankReport* report = last.mutable_heartbeat()->add_ranks();
  report->set_job(id_);
  report->set_epoch(1);
  report->set_state(v1::RANK_FAILED);
  report->set_reason(v1::REASON_DATA_ERROR);
  report->set_message("a token beyond the vocabulary");
  Say(*workers_["w0"], last);
  reconciler_->Pass();
  EXPECT_EQ(JobNow(id_).state(), v1::FAILED);
  EXPECT_EQ(JobNow(id_).reason(), v1::REASON_DATA_ERROR);
  EXPECT_THAT(JobNow(id_).message(), HasSubstr("a token beyond the vocabulary"));
}

TEST_F(BrokenGangTest, AnEndThatCannotBeStoredIsTriedAgain) {
  Break();
  store_.full = true;
  Settle();
  EXPECT_EQ(JobNow(id_).state(), v1::RUNNING);
  store_.full = false;
  Settle();
  EXPECT_EQ(JobNow(id_).state(), v1::FAILED);
  EXPECT_THAT(JobNow(id_).message(), HasSubstr("rank 1 on w1: killed by signal 9"));
}

TEST_F(ReconcilerTest, StepsThatALostGangHadDoneAreRepeatedAlsoForTheNextCoordinator) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  const auto step_to = [&](int64_t step) {
    clock_.AdvanceMillis(1000);
    v1::WorkerMessage told;
    v1::JobEvent* event = told.add_events();
    event->set_job(id);
    event->set_epoch(JobNow(id).epoch());
    event->mutable_step()->set_step(step);
    Say(w0, told);
    RankOf("w0", id, 0).mutable_progress()->set_step(step);
    Settle();
  };
  step_to(5);
  RankOf("w0", id, 0).mutable_progress()->set_checkpoint_step(5);
  RankOf("w0", id, 0).mutable_progress()->set_checkpoint_unix_ms(1234);
  Settle();
  step_to(9);
  RankOf("w0", id, 0).set_state(v1::RANK_FAILED);
  Settle();
  StartCoordinator();
  Connect(w0);
  Ready(id);
  ASSERT_EQ(JobNow(id).state(), v1::RUNNING);
  ASSERT_EQ(JobNow(id).progress().checkpoint_step(), 5);
  EXPECT_EQ(JobNow(id).progress().checkpoint_unix_ms(), 1234) << "its gang knows nothing of it";
  const auto seconds = [&](std::string_view cause) {
    const SpentUntil spent = TimeSpentUntil(JobNow(id), clock_.UnixMillis());
    const auto at = std::find(kSpentCauses.begin(), kSpentCauses.end(), cause);
    return spent.seconds[static_cast<size_t>(at - kSpentCauses.begin())];
  };
  const double trained = seconds("training");
  step_to(6);
  step_to(9);
  EXPECT_DOUBLE_EQ(seconds("repeated"), 2);
  step_to(10);
  EXPECT_DOUBLE_EQ(seconds("repeated"), 2);
  EXPECT_DOUBLE_EQ(seconds("training"), trained + 1);
  EXPECT_GT(JobNow(id).last_restarts(0).recovery_seconds(), 0);
}

// The ranks train on while no coordinator is there: nothing is done twice.
TEST_F(ReconcilerTest, StepsThatTheSameGangGoesOnWithAreNotRepeatedForTheNextCoordinator) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  const auto step_to = [&](int64_t step) {
    clock_.AdvanceMillis(1000);
    v1::WorkerMessage told;
    v1::JobEvent* event = told.add_events();
    event->set_job(id);
    event->set_epoch(JobNow(id).epoch());
    event->mutable_step()->set_step(step);
    Say(w0, told);
    RankOf("w0", id, 0).mutable_progress()->set_step(step);
    Settle();
  };
  const auto repeated = [&] {
    const SpentUntil spent = TimeSpentUntil(JobNow(id), clock_.UnixMillis());
    const auto at = std::find(kSpentCauses.begin(), kSpentCauses.end(), "repeated");
    return spent.seconds[static_cast<size_t>(at - kSpentCauses.begin())];
  };
  const auto next_coordinator = [&] {
    clock_.AdvanceMillis(10'000);  // what is known of the last step is written
    Settle();
    StartCoordinator();
    Connect(w0);
    Settle();
    ASSERT_EQ(JobNow(id).state(), v1::RUNNING);
  };
  step_to(90);
  next_coordinator();
  step_to(100);
  EXPECT_DOUBLE_EQ(repeated(), 0);
  RankOf("w0", id, 0).set_state(v1::RANK_FAILED);  // it begins again without a checkpoint
  Settle();
  Ready(id);
  ASSERT_EQ(JobNow(id).epoch(), 2);
  step_to(40);
  const double again = repeated();
  EXPECT_GT(again, 0);
  next_coordinator();
  step_to(100);
  EXPECT_DOUBLE_EQ(repeated(), again + 11) << "of the second gang, from step 40 on";
  step_to(101);
  EXPECT_DOUBLE_EQ(repeated(), again + 11);
}

}  // namespace
}  // namespace terrace
