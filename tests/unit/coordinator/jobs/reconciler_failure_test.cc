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

}  // namespace
}  // namespace terrace
