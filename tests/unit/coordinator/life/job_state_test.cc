// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/job_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/life/job_state_jobs.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// ---- which input is legal in which state ------------------------------------------------------

struct Legality {
  const char* name;
  JobInput input;
  std::set<v1::JobState> legal_in;
};

class LegalityTest : public testing::TestWithParam<Legality> {};

TEST_P(LegalityTest, AnInputIsTakenInTheseStatesAndRefusedInAllOthers) {
  for (int number = v1::PENDING; number <= v1::CANCELLED; ++number) {
    const auto state = static_cast<v1::JobState>(number);
    const v1::Job job = JobIn(state);
    const auto transition = Apply(job, GetParam().input, kNow);
    if (GetParam().legal_in.contains(state)) {
      EXPECT_TRUE(transition.ok()) << v1::JobState_Name(state) << ": " << transition.status();
      continue;
    }
    EXPECT_EQ(transition.status().code(), absl::StatusCode::kFailedPrecondition)
        << v1::JobState_Name(state);
    EXPECT_THAT(std::string(transition.status().message()), HasSubstr(v1::JobState_Name(state)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    JobState, LegalityTest,
    testing::Values(
        Legality{"PlanningStarted", PlanningStarted{}, {v1::PENDING, v1::QUEUED, v1::RECOVERING}},
        Legality{"Planned",
                 Planned{},
                 {v1::PENDING, v1::PLANNING, v1::PAUSED, v1::QUEUED, v1::RECOVERING}},
        Legality{"Refused",
                 Refused{v1::REASON_DOES_NOT_FIT, "big"},
                 {v1::PENDING, v1::PLANNING, v1::PAUSED}},
        Legality{"Adjusted", Adjusted{}, {}},
        Legality{"MustWait",
                 MustWait{v1::REASON_WAITING_FOR_DEVICES, "wait"},
                 {v1::PENDING, v1::PLANNING, v1::QUEUED, v1::RECOVERING}},
        Legality{"Placed", Placed{}, {v1::QUEUED, v1::RECOVERING}},
        Legality{"RanksObserved",
                 RanksObserved{{Reported(0, v1::RANK_PREPARING)}},
                 {v1::STARTING, v1::RUNNING, v1::RECOVERING}},
        Legality{"Progressed", Progressed{}, {v1::STARTING, v1::RUNNING}},
        Legality{"CancelAsked",
                 CancelAsked{},
                 {v1::PENDING, v1::PLANNING, v1::QUEUED, v1::STARTING, v1::RUNNING, v1::PAUSED,
                  v1::RECOVERING}},
        Legality{"PauseAsked",
                 PauseAsked{},
                 {v1::PENDING, v1::PLANNING, v1::QUEUED, v1::STARTING, v1::RUNNING, v1::PAUSED,
                  v1::RECOVERING}},
        Legality{"ResumeAsked",
                 ResumeAsked{},
                 {v1::PENDING, v1::PLANNING, v1::QUEUED, v1::STARTING, v1::RUNNING, v1::PAUSED,
                  v1::RECOVERING}}),
    [](const auto& info) { return info.param.name; });

// ---- from submission to placement -------------------------------------------------------------

TEST(JobStateTest, ANewJobIsPendingAndKnowsItsSteps) {
  const v1::Job job = NewJob("a-1", JobIn(v1::PENDING).spec(), kNow);
  EXPECT_EQ(job.state(), v1::PENDING);
  EXPECT_EQ(job.progress().steps(), 100);
  EXPECT_EQ(job.submitted_unix_ms(), kNow);
}

TEST(JobStateTest, APlanQueuesTheJob) {
  Planned planned;
  planned.plan.set_instructions(17);
  const v1::Job job = Next(JobIn(v1::PLANNING), planned);
  EXPECT_EQ(job.state(), v1::QUEUED);
  EXPECT_EQ(job.plan().instructions(), 17);
}

TEST(JobStateTest, ARefusedPlanFailsTheJobWithTheReason) {
  const v1::Job job = Next(JobIn(v1::PLANNING), Refused{v1::REASON_DOES_NOT_FIT, "too big"});
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_DOES_NOT_FIT);
  EXPECT_EQ(job.message(), "too big");
  EXPECT_EQ(job.finished_unix_ms(), kNow + 1);
}

TEST(JobStateTest, WaitingAgainForTheSameReasonChangesNothing) {
  const MustWait wait{v1::REASON_WAITING_FOR_DEVICES, "1 of 2 free"};
  const v1::Job job = Next(JobIn(v1::QUEUED), wait);
  EXPECT_EQ(job.reason(), v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_FALSE(Apply(job, wait, kNow)->changed);
}

TEST(JobStateTest, APlacementStartsANewEpoch) {
  Placed placed;
  placed.placement.add_ranks()->set_worker("w0");
  const v1::Job job = Next(JobIn(v1::QUEUED), placed);
  EXPECT_EQ(job.state(), v1::STARTING);
  EXPECT_EQ(job.epoch(), 4);
  EXPECT_EQ(job.placement().ranks_size(), 1);
}

TEST(JobStateTest, AJobWithoutAPlanCannotBePlaced) {
  v1::Job job = JobIn(v1::QUEUED);
  job.clear_plan();
  EXPECT_FALSE(Apply(job, Placed{}, kNow).ok());
}

// ---- ranks ------------------------------------------------------------------------------------

TEST(JobStateTest, AGangRunsOnlyWhenAllItsRanksAreReady) {
  const v1::Job job = JobIn(v1::STARTING);
  RanksObserved observed{{Reported(0, v1::RANK_READY), Reported(1, v1::RANK_PREPARING)}};
  EXPECT_FALSE(Apply(job, observed, kNow)->changed);
  observed.ranks[1] = Reported(1, v1::RANK_READY);
  const v1::Job running = Next(job, observed);
  EXPECT_EQ(running.state(), v1::RUNNING);
  EXPECT_EQ(running.started_unix_ms(), kNow + 1);
}

TEST(JobStateTest, AMissingRankOfAStartingGangIsStillToBeStarted) {
  const RanksObserved observed{{Reported(0, v1::RANK_READY), Absent(1, Presence::kMissing)}};
  EXPECT_FALSE(Apply(JobIn(v1::STARTING), observed, kNow)->changed);
}

TEST(JobStateTest, ASilentWorkerDoesNotDisturbItsJobUntilItIsGivenUp) {
  RanksObserved observed{{Reported(0, v1::RANK_RUNNING), Absent(2, Presence::kAway)}};
  EXPECT_FALSE(Apply(JobIn(v1::RUNNING), observed, kNow)->changed);
  observed.ranks[1].presence = Presence::kLost;
  const v1::Job job = Next(JobIn(v1::RUNNING), observed);
  EXPECT_EQ(job.state(), v1::RECOVERING);
  EXPECT_EQ(job.reason(), v1::REASON_WORKER_LOST);
  EXPECT_THAT(job.message(), HasSubstr("w1"));
}

TEST(JobStateTest, ARankThatDiesMakesTheWholeGangRecoverFromTheLastCheckpoint) {
  v1::Job job = JobIn(v1::RUNNING);
  job.mutable_progress()->set_checkpoint_step(40);
  const RanksObserved observed{
      {Reported(0, v1::RANK_RUNNING),
       Reported(1, v1::RANK_FAILED, v1::REASON_RANK_DIED, "killed by signal 9")}};
  job = Next(job, observed);
  EXPECT_EQ(job.state(), v1::RECOVERING);
  EXPECT_EQ(job.reason(), v1::REASON_RANK_DIED);
  EXPECT_EQ(job.restarts(), 1);
  EXPECT_EQ(job.epoch(), 3) << "the epoch grows with the next placement";
  EXPECT_THAT(job.message(), HasSubstr("rank 1 on w0: killed by signal 9"));
  EXPECT_THAT(job.message(), HasSubstr("checkpoint of step 40"));
}

TEST(JobStateTest, ARunningRankThatItsWorkerForgotIsAFailure) {
  const RanksObserved observed{{Reported(0, v1::RANK_RUNNING), Absent(1, Presence::kMissing)}};
  EXPECT_EQ(Next(JobIn(v1::RUNNING), observed).state(), v1::RECOVERING);
}

TEST(JobStateTest, RestartsWithoutProgressAreBounded) {
  const RanksObserved died{{Reported(0, v1::RANK_FAILED, v1::REASON_RANK_DIED, "signal 11")}};
  v1::Job job = JobIn(v1::RUNNING);
  for (int restart = 1; restart <= 2; ++restart) {
    job = Next(job, died);
    ASSERT_EQ(job.state(), v1::RECOVERING);
    ASSERT_EQ(job.restarts_without_progress(), restart);
    job.set_state(v1::RUNNING);
  }
  job = Next(job, died);
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_RESTARTS_EXHAUSTED);
  EXPECT_THAT(job.message(), HasSubstr("signal 11"));
}

TEST(JobStateTest, ARestartIsRememberedWhenTheJobRunsAgain) {
  v1::Job job = JobIn(v1::RUNNING);
  job.mutable_spec()->set_max_restarts(100);
  for (int restart = 1; restart <= 20; ++restart) {
    const std::string what = absl::StrCat("killed by signal ", restart);
    job.mutable_progress()->set_checkpoint_step(10 * restart);
    job = Next(job, RanksObserved{{Reported(1, v1::RANK_FAILED, v1::REASON_RANK_DIED, what)}});
    ASSERT_EQ(job.state(), v1::RECOVERING);
    job.set_state(v1::RUNNING);
    job.clear_message();
  }
  EXPECT_EQ(job.restarts(), 20);
  ASSERT_EQ(job.last_restarts_size(), 16) << "a job does not grow without end";
  const v1::Restart& last = job.last_restarts(15);
  EXPECT_EQ(last.unix_ms(), kNow + 1) << "when Next was told";
  EXPECT_EQ(last.step(), 200);
  EXPECT_EQ(last.reason(), v1::REASON_RANK_DIED);
  EXPECT_EQ(last.message(), "rank 1 on w0: killed by signal 20");
  EXPECT_EQ(job.last_restarts(0).step(), 50) << "the oldest are forgotten";
}

TEST(JobStateTest, ANewCheckpointGivesTheRestartsBack) {
  v1::Job job = JobIn(v1::RUNNING);
  job.set_restarts(2);
  job.set_restarts_without_progress(2);
  Progressed progressed;
  progressed.progress.set_step(50);
  EXPECT_EQ(Next(job, progressed).restarts_without_progress(), 2) << "steps alone are not kept";
  progressed.progress.set_checkpoint_step(50);
  job = Next(job, progressed);
  EXPECT_EQ(job.restarts_without_progress(), 0);
  EXPECT_EQ(job.restarts(), 2);
}

class PermanentTest : public testing::TestWithParam<v1::Reason> {};

TEST_P(PermanentTest, AFailureThatARestartCannotCureEndsTheJobInAnyState) {
  for (const v1::JobState state : {v1::STARTING, v1::RUNNING, v1::RECOVERING}) {
    const RanksObserved observed{{Reported(0, v1::RANK_FAILED, v1::REASON_RANK_DIED, "peer gone"),
                                  Reported(1, v1::RANK_FAILED, GetParam(), "the cause")}};
    const v1::Job job = Next(JobIn(state), observed);
    EXPECT_EQ(job.state(), v1::FAILED);
    EXPECT_EQ(job.reason(), GetParam());
    EXPECT_THAT(job.message(), HasSubstr("the cause"));
  }
}

INSTANTIATE_TEST_SUITE_P(JobState, PermanentTest,
                         testing::Values(v1::REASON_INVALID_SPEC, v1::REASON_DOES_NOT_FIT,
                                         v1::REASON_DATA_ERROR, v1::REASON_WEIGHTS_ERROR,
                                         v1::REASON_CHECKPOINT_ERROR, v1::REASON_NON_FINITE_LOSS));

TEST(JobStateTest, AJobSucceedsWhenAllItsRanksHaveDoneAllSteps) {
  RanksObserved observed{{Reported(0, v1::RANK_SUCCEEDED), Reported(1, v1::RANK_RUNNING)}};
  EXPECT_FALSE(Apply(JobIn(v1::RUNNING), observed, kNow)->changed);
  observed.ranks[1] = Reported(1, v1::RANK_SUCCEEDED);
  const v1::Job job = Next(JobIn(v1::RUNNING), observed);
  EXPECT_EQ(job.state(), v1::SUCCEEDED);
  EXPECT_EQ(job.reason(), v1::REASON_COMPLETED);
}

TEST(JobStateTest, RanksStoppedByTheirWorkerRestart) {
  EXPECT_EQ(Next(JobIn(v1::RUNNING), RanksObserved{{StoppedEarly(0)}}).state(), v1::RECOVERING);
}

TEST(JobStateTest, ARecoveringGangIgnoresItsDyingRanks) {
  const RanksObserved observed{{Reported(0, v1::RANK_FAILED, v1::REASON_RANK_DIED, "killed")}};
  EXPECT_FALSE(Apply(JobIn(v1::RECOVERING), observed, kNow)->changed);
}

// ---- cancel -----------------------------------------------------------------------------------

TEST(JobStateTest, CancellingARunningJobWaitsForItsLastCheckpoint) {
  v1::Job job = Next(JobIn(v1::RUNNING), CancelAsked{});
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_TRUE(job.cancel_requested());
  job = Next(job, RanksObserved{{StoppedEarly(0), StoppedEarly(1)}});
  EXPECT_EQ(job.state(), v1::CANCELLED);
  EXPECT_EQ(job.reason(), v1::REASON_CANCELLED_BY_USER);
}

TEST(JobStateTest, AJobThatSavesNeverIsCancelledWithoutACheckpointAndSaysSo) {
  v1::Job job = JobIn(v1::RUNNING);
  job.mutable_spec()->mutable_checkpoint()->set_save("never");
  job = Next(job, CancelAsked{});
  EXPECT_EQ(job.message(), "stops after this step");
  job = Next(job, RanksObserved{{StoppedEarly(0), StoppedEarly(1)}});
  EXPECT_EQ(job.state(), v1::CANCELLED);
  EXPECT_EQ(job.message(), "cancelled without a checkpoint: its spec has none");
}

TEST(JobStateTest, CancellingTwiceIsCancellingOnce) {
  const v1::Job job = Next(JobIn(v1::RUNNING), CancelAsked{});
  EXPECT_FALSE(Apply(job, CancelAsked{}, kNow)->changed);
}

TEST(JobStateTest, ForceCancelsAtOnceEvenAfterAGracefulCancel) {
  EXPECT_EQ(Next(JobIn(v1::RUNNING), CancelAsked{.force = true}).state(), v1::CANCELLED);
  const v1::Job stopping = Next(JobIn(v1::RUNNING), CancelAsked{});
  EXPECT_EQ(Next(stopping, CancelAsked{.force = true}).state(), v1::CANCELLED);
}

TEST(JobStateTest, ACancelledJobWhoseRankDiesIsNotRestarted) {
  const v1::Job job = Next(JobIn(v1::RUNNING), CancelAsked{});
  const RanksObserved died{{Reported(0, v1::RANK_FAILED, v1::REASON_RANK_DIED, "signal 9")}};
  EXPECT_EQ(Next(job, died).state(), v1::CANCELLED);
}

TEST(JobStateTest, AJobThatFinishesWhileBeingCancelledHasSucceeded) {
  const v1::Job job = Next(JobIn(v1::RUNNING), CancelAsked{});
  EXPECT_EQ(Next(job, RanksObserved{{Reported(0, v1::RANK_SUCCEEDED)}}).state(), v1::SUCCEEDED);
}

}  // namespace
}  // namespace terrace
