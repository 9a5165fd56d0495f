// Pausing and resuming in every state, and what happens to a job meanwhile.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/life/job_state.h"
#include "tests/unit/coordinator/life/job_state_jobs.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const RanksObserved kStopped{{StoppedEarly(0), StoppedEarly(1)}};
const RanksObserved kDied{
    {Reported(0, v1::RANK_FAILED, v1::REASON_RANK_DIED, "signal 9"), StoppedEarly(1)}};

v1::Job RunningAt(int64_t checkpoint_step) {
  v1::Job job = JobIn(v1::RUNNING);
  job.mutable_progress()->set_checkpoint_step(checkpoint_step);
  return job;
}
v1::Job Pausing() { return Next(RunningAt(40), PauseAsked{}); }
v1::Job Paused() { return Next(Pausing(), kStopped); }

v1::Job OutOfMemory(v1::Job job) {
  job.set_restarts_without_progress(1);
  RankView view = Reported(0, v1::RANK_FAILED, v1::REASON_OUT_OF_MEMORY, "held too much");
  return Next(job, RanksObserved{{view}});
}

// ---- into it ----------------------------------------------------------------------------------

TEST(PauseTest, ARunningJobWritesACheckpointBeforeItIsPaused) {
  v1::Job job = Pausing();
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_EQ(job.reason(), v1::REASON_PAUSED_BY_USER);
  EXPECT_EQ(job.message(), "pauses after a checkpoint");
  EXPECT_EQ(job.paused_unix_ms(), 0);
  EXPECT_THAT(ActionsFor(job, {Reported(0, v1::RANK_RUNNING), Reported(2, v1::RANK_SUCCEEDED)}),
              ElementsAre(Action{Action::Kind::kStopWithCheckpoint, "w0", {}}));
  EXPECT_FALSE(
      Apply(job, RanksObserved{{StoppedEarly(0), Reported(1, v1::RANK_RUNNING)}}, kNow)->changed);
  job = Next(job, kStopped);
  EXPECT_EQ(job.state(), v1::PAUSED);
  EXPECT_EQ(job.reason(), v1::REASON_PAUSED_BY_USER);
  EXPECT_EQ(job.message(),
            "goes on from the checkpoint of step 40 when it is resumed: terrace resume a-1");
  EXPECT_EQ(job.paused_unix_ms(), kNow + 1);
  EXPECT_FALSE(job.pause_requested());
  EXPECT_EQ(job.restarts(), 0);
}

TEST(PauseTest, APausedJobHoldsNoDevicesAndItsRanksAreStray) {
  const v1::Job job = Paused();
  EXPECT_FALSE(HasEnded(job.state()));
  EXPECT_FALSE(HoldsDevices(job.state()));
  v1::RankReport report;
  report.set_epoch(job.epoch());
  EXPECT_TRUE(IsStray(&job, report));
  EXPECT_THAT(ActionsFor(job, {Absent(0, Presence::kMissing), Reported(1, v1::RANK_READY)}),
              IsEmpty());
}

TEST(PauseTest, WhatDoesNotRunIsPausedAtOnceAndSaysWhereItGoesOn) {
  for (const v1::JobState state :
       {v1::PENDING, v1::PLANNING, v1::QUEUED, v1::STARTING, v1::RECOVERING}) {
    v1::Job job = JobIn(state);
    job.mutable_progress()->set_checkpoint_step(7);
    job.mutable_progress()->set_activity("tokenising corpus.txt");
    job = Next(job, PauseAsked{});
    EXPECT_EQ(job.progress().activity(), "");
    EXPECT_EQ(job.state(), v1::PAUSED) << v1::JobState_Name(state);
    EXPECT_THAT(job.message(), HasSubstr("goes on from the checkpoint of step 7"));
  }
  v1::Job waiting = JobIn(v1::QUEUED);
  waiting.set_epoch(0);
  EXPECT_EQ(Next(waiting, PauseAsked{}).message(),
            "takes its place in the queue when it is resumed: terrace resume a-1");
}

TEST(PauseTest, ForcePausesAtOnceAlsoAfterAGracefulPause) {
  EXPECT_EQ(Next(RunningAt(0), PauseAsked{.force = true}).state(), v1::PAUSED);
  const v1::Job job = Next(Pausing(), PauseAsked{.force = true});
  EXPECT_EQ(job.state(), v1::PAUSED);
  EXPECT_FALSE(job.pause_requested());
}

TEST(PauseTest, PausingTwiceIsPausingOnce) {
  EXPECT_FALSE(Apply(Pausing(), PauseAsked{}, kNow)->changed);
  EXPECT_FALSE(Apply(Paused(), PauseAsked{}, kNow)->changed);
  EXPECT_FALSE(Apply(Paused(), PauseAsked{.force = true}, kNow)->changed);
}

TEST(PauseTest, AJobThatSavesNothingIsPausedByForceOnly) {
  v1::Job job = JobIn(v1::RUNNING);
  job.mutable_spec()->mutable_checkpoint()->set_save("never");
  job.mutable_progress()->set_step(12);
  const auto refused = Apply(job, PauseAsked{}, kNow);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("lose its 12 steps"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--force"));
  EXPECT_THAT(Next(job, PauseAsked{.force = true}).message(), HasSubstr("from the beginning"));
}

TEST(PauseTest, AJobThatIsBeingCancelledIsNotPaused) {
  const v1::Job job = Next(RunningAt(40), CancelAsked{});
  EXPECT_EQ(Apply(job, PauseAsked{}, kNow).status().code(), absl::StatusCode::kFailedPrecondition);
}

// ---- what happens while it stops --------------------------------------------------------------

TEST(PauseTest, AJobThatFinishesWhileItStopsHasSucceeded) {
  const v1::Job job = Next(Pausing(), RanksObserved{{Reported(0, v1::RANK_SUCCEEDED)}});
  EXPECT_EQ(job.state(), v1::SUCCEEDED);
  EXPECT_FALSE(job.pause_requested());
}

TEST(PauseTest, AGangThatBreaksWhileItStopsIsPausedAndTheFailureCounts) {
  const v1::Job job = Next(Pausing(), kDied);
  EXPECT_EQ(job.state(), v1::PAUSED);
  EXPECT_THAT(job.message(), HasSubstr("signal 9; goes on from the checkpoint of step 40 when"));
  EXPECT_EQ(job.restarts(), 1);
  EXPECT_EQ(job.restarts_without_progress(), 1);
  v1::Job last = Pausing();
  last.set_restarts_without_progress(2);
  EXPECT_EQ(Next(last, kDied).state(), v1::FAILED);
}

TEST(PauseTest, AFailureThatARestartCannotCureEndsTheJobAlsoWhileItStops) {
  const RanksObserved full{{Reported(0, v1::RANK_FAILED, v1::REASON_CHECKPOINT_ERROR, "full")}};
  EXPECT_EQ(Next(Pausing(), full).state(), v1::FAILED);
}

TEST(PauseTest, ADrainedWorkerDoesNotMoveAJobThatIsToPause) {
  RanksObserved observed = kStopped;
  observed.leaving = {DrainAction::How::kAfterCheckpoint, "worker w0 is drained"};
  EXPECT_EQ(Next(Pausing(), observed).state(), v1::PAUSED);
  const RanksObserved late{.ranks = {Reported(0, v1::RANK_RUNNING)},
                           .leaving = {DrainAction::How::kAtOnce, "worker w0 is drained"}};
  const v1::Job job = Next(Pausing(), late);
  EXPECT_EQ(job.state(), v1::PAUSED);
  EXPECT_EQ(job.restarts(), 0);
}

TEST(PauseTest, CancellingWinsOverAPauseUnderWay) {
  const v1::Job job = Next(Pausing(), CancelAsked{});
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_EQ(Apply(job, ResumeAsked{}, kNow).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Next(job, kStopped).state(), v1::CANCELLED);
}

TEST(PauseTest, MemoryThatRunsOutWhileItStopsIsAnsweredWhenItIsResumed) {
  const v1::Job paused = OutOfMemory(Pausing());
  EXPECT_EQ(paused.state(), v1::PAUSED);
  EXPECT_THAT(paused.message(), HasSubstr("held too much"));
  EXPECT_FALSE(NeedsSmallerLayout(paused));
  const v1::Job job = Next(paused, ResumeAsked{});
  EXPECT_EQ(job.state(), v1::RECOVERING);
  EXPECT_EQ(job.reason(), v1::REASON_OUT_OF_MEMORY);
  EXPECT_TRUE(NeedsSmallerLayout(job));
}

// ---- while it is paused -----------------------------------------------------------------------

TEST(PauseTest, APlanThatComesWhileAJobIsPausedIsKept) {
  v1::Job job = JobIn(v1::PLANNING);
  job.clear_plan();
  job = Next(job, PauseAsked{});
  Planned planned;
  planned.plan.set_instructions(17);
  const v1::Job held = Next(job, planned);
  EXPECT_EQ(held.state(), v1::PAUSED);
  EXPECT_EQ(held.plan().instructions(), 17);
  EXPECT_EQ(held.paused_unix_ms(), job.paused_unix_ms());
  EXPECT_EQ(Next(held, ResumeAsked{}).state(), v1::QUEUED);
  EXPECT_EQ(Next(job, Refused{v1::REASON_DOES_NOT_FIT, "big"}).state(), v1::FAILED);
}

TEST(PauseTest, ASmallerLayoutThatComesWhileAJobIsPausedIsKept) {
  v1::Job job = Next(OutOfMemory(RunningAt(40)), PauseAsked{});
  EXPECT_EQ(job.state(), v1::PAUSED);
  Adjusted adjusted{.change = "a smaller micro-batch"};
  adjusted.plan.mutable_layout()->set_micro_batch(2);
  const v1::Job held = Next(job, adjusted);
  EXPECT_EQ(held.state(), v1::PAUSED);
  EXPECT_EQ(held.plan().layout().micro_batch(), 2);
  EXPECT_EQ(Next(held, ResumeAsked{}).state(), v1::QUEUED);
  EXPECT_EQ(Next(job, Refused{v1::REASON_OUT_OF_MEMORY, "nothing"}).state(), v1::FAILED);
}

TEST(PauseTest, APausedJobIsCancelledAtOnce) {
  EXPECT_EQ(Next(Paused(), CancelAsked{}).state(), v1::CANCELLED);
}

// ---- out of it --------------------------------------------------------------------------------

TEST(PauseTest, AResumedJobWaitsForDevicesAgain) {
  const v1::Job job = Next(Paused(), ResumeAsked{});
  EXPECT_EQ(job.state(), v1::QUEUED);
  EXPECT_EQ(job.reason(), v1::REASON_NONE);
  EXPECT_EQ(job.message(), "");
  EXPECT_EQ(job.paused_unix_ms(), 0);
  EXPECT_EQ(job.resumed_unix_ms(), kNow + 1);
  EXPECT_EQ(job.submitted_unix_ms(), kNow) << "which is its place in the queue";
  Placed placed;
  placed.placement.add_ranks()->set_worker("w1");
  EXPECT_EQ(Next(job, placed).epoch(), 4);
}

TEST(PauseTest, AJobThatWasPausedBeforeItHadAPlanIsPlannedThen) {
  v1::Job job = JobIn(v1::PLANNING);
  job.clear_plan();
  EXPECT_EQ(Next(Next(job, PauseAsked{}), ResumeAsked{}).state(), v1::PENDING);
}

TEST(PauseTest, ResumedWhileItStopsAJobGoesOnOnceItHasStopped) {
  v1::Job job = Next(Pausing(), ResumeAsked{});
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_THAT(job.message(), HasSubstr("resumed while it stopped"));
  EXPECT_FALSE(Apply(job, ResumeAsked{}, kNow)->changed);
  const v1::Job waits = Next(job, kStopped);
  EXPECT_EQ(waits.state(), v1::QUEUED);
  EXPECT_FALSE(waits.resume_requested());
  EXPECT_EQ(waits.restarts(), 0) << "its worker was not lost";
  EXPECT_EQ(Next(job, kDied).state(), v1::RECOVERING);
  job = Next(job, PauseAsked{});
  EXPECT_EQ(Next(job, kStopped).state(), v1::PAUSED) << "the last word counts";
}

TEST(PauseTest, ResumingWhatIsNotPausedChangesNothing) {
  for (const v1::JobState state :
       {v1::PENDING, v1::PLANNING, v1::QUEUED, v1::STARTING, v1::RUNNING, v1::RECOVERING}) {
    EXPECT_FALSE(Apply(JobIn(state), ResumeAsked{}, kNow)->changed);
  }
}

}  // namespace
}  // namespace terrace
