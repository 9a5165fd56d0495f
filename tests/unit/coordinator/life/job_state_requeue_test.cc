// Jobs that give their devices back and wait in the queue again: asked by their user, or for a job
// of a higher priority.
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

const RanksObserved kStopped{{StoppedEarly(0), StoppedEarly(1)}};

v1::Job RunningAt(int64_t checkpoint_step) {
  v1::Job job = JobIn(v1::RUNNING);
  job.mutable_progress()->set_checkpoint_step(checkpoint_step);
  return job;
}

TEST(RequeueTest, ARunningJobWritesACheckpointAndWaitsAgainAsIfItWereNew) {
  v1::Job job = Next(RunningAt(40), RequeueAsked{});
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_EQ(job.reason(), v1::REASON_NONE);
  EXPECT_EQ(job.message(), "stops after a checkpoint and waits in the queue again");
  EXPECT_THAT(ActionsFor(job, {Reported(0, v1::RANK_RUNNING)}),
              ElementsAre(Action{Action::Kind::kStopWithCheckpoint, "w0", {}}));
  EXPECT_FALSE(Apply(job, RequeueAsked{}, kNow)->changed) << "asked twice";
  job = Next(job, kStopped);
  EXPECT_EQ(job.state(), v1::QUEUED);
  EXPECT_EQ(job.resumed_unix_ms(), kNow + 1) << "its age begins anew";
  EXPECT_FALSE(job.pause_requested());
  EXPECT_FALSE(job.resume_requested());
  EXPECT_EQ(job.restarts(), 0);
}

TEST(RequeueTest, AJobThatWaitsGoesToTheEndAndAPausedOneIntoTheQueue) {
  for (const v1::JobState state : {v1::PENDING, v1::PLANNING, v1::QUEUED, v1::RECOVERING}) {
    const v1::Job job = Next(JobIn(state), RequeueAsked{});
    EXPECT_EQ(job.state(), state) << v1::JobState_Name(state);
    EXPECT_EQ(job.resumed_unix_ms(), kNow + 1);
  }
  const v1::Job paused = Next(JobIn(v1::QUEUED), PauseAsked{});
  EXPECT_EQ(Next(paused, RequeueAsked{}).state(), v1::QUEUED);
}

TEST(RequeueTest, OneThatStartsAndOneThatIsForcedFreeTheirDevicesAtOnce) {
  EXPECT_EQ(Next(JobIn(v1::STARTING), RequeueAsked{}).state(), v1::QUEUED);
  v1::Job job = RunningAt(0);
  job.mutable_progress()->set_activity("tokenising corpus.txt");
  job = Next(job, RequeueAsked{.force = true});
  EXPECT_EQ(job.state(), v1::QUEUED);
  EXPECT_EQ(job.resumed_unix_ms(), kNow + 1);
  EXPECT_EQ(job.progress().activity(), "");
}

TEST(RequeueTest, WhatEndsOrWouldLoseItsStepsIsRefused) {
  for (const v1::JobState state : {v1::SUCCEEDED, v1::FAILED, v1::CANCELLED})
    EXPECT_FALSE(Apply(JobIn(state), RequeueAsked{}, kNow).ok());
  EXPECT_FALSE(Apply(Next(RunningAt(40), CancelAsked{}), RequeueAsked{}, kNow).ok());
  v1::Job job = JobIn(v1::RUNNING);
  job.mutable_spec()->mutable_checkpoint()->set_save("never");
  job.mutable_progress()->set_step(12);
  EXPECT_THAT(std::string(Apply(job, RequeueAsked{}, kNow).status().message()),
              HasSubstr("a requeue would lose its 12 steps; with --force it is requeued"));
  EXPECT_FALSE(Apply(job, Preempted{"b-2"}, kNow).ok());
}

TEST(RequeueTest, APauseThatCameFirstBecomesARequeueAndTheOtherWayRound) {
  const v1::Job pausing = Next(RunningAt(40), PauseAsked{});
  EXPECT_EQ(Next(Next(pausing, RequeueAsked{}), kStopped).state(), v1::QUEUED);
  const v1::Job requeued = Next(RunningAt(40), RequeueAsked{});
  EXPECT_EQ(Next(Next(requeued, PauseAsked{}), kStopped).state(), v1::PAUSED);
}

TEST(PreemptionTest, AJobStopsForAnotherAndSaysSoUntilItStartsAgain) {
  v1::Job job = Next(RunningAt(40), Preempted{"b-2"});
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_EQ(job.reason(), v1::REASON_PREEMPTED);
  EXPECT_EQ(job.message(),
            "stops after a checkpoint for job b-2, which has a higher priority and needs its "
            "devices");
  EXPECT_EQ(job.preemptions(), 1);
  EXPECT_FALSE(Apply(job, Preempted{"c-3"}, kNow).ok()) << "it stops already";
  job = Next(job, kStopped);
  EXPECT_EQ(job.state(), v1::QUEUED);
  EXPECT_EQ(job.reason(), v1::REASON_PREEMPTED);
  EXPECT_EQ(job.message(), "gave its devices to job b-2; goes on from the checkpoint of step 40");
  EXPECT_EQ(job.resumed_unix_ms(), kNow + 1);
  job = Next(job, Placed{});
  EXPECT_EQ(job.preempted_by(), "");
  EXPECT_EQ(job.preemptions(), 1);
}

TEST(RestoreTest, AJobGoesOnUnderANewEpochUnlessAnotherEndWasAskedFor) {
  const RestoredFromBackup restored{.epochs_skipped = 100};
  for (const v1::JobState state : {v1::STARTING, v1::RUNNING}) {
    const v1::Job job = Next(JobIn(state), restored);
    EXPECT_EQ(job.state(), v1::RECOVERING);
    EXPECT_EQ(job.epoch(), 103);
    EXPECT_THAT(job.message(), HasSubstr("restored from a backup; goes on"));
  }
  EXPECT_EQ(Next(Next(RunningAt(40), PauseAsked{}), restored).state(), v1::PAUSED);
  EXPECT_EQ(Next(Next(RunningAt(40), CancelAsked{}), restored).state(), v1::CANCELLED);
  EXPECT_EQ(Next(Next(RunningAt(40), RequeueAsked{}), restored).state(), v1::RECOVERING);
  v1::Job waits = JobIn(v1::QUEUED);
  waits.set_epoch(0);
  EXPECT_EQ(Next(waits, restored).epoch(), 100) << "it may have started since";
  waits.add_dependencies()->set_job("b-2");
  EXPECT_EQ(Next(waits, restored).epoch(), 0) << "it still waits for the other";
  EXPECT_FALSE(Apply(JobIn(v1::SUCCEEDED), restored, kNow)->changed);
}

TEST(PreemptionTest, OneThatStartsIsStoppedAtOnce) {
  const v1::Job job = Next(JobIn(v1::STARTING), Preempted{"b-2"});
  EXPECT_EQ(job.state(), v1::QUEUED);
  EXPECT_EQ(job.reason(), v1::REASON_PREEMPTED);
}

TEST(PreemptionTest, WhatItsUserAsksForGoesBeforeIt) {
  const v1::Job job = Next(RunningAt(40), Preempted{"b-2"});
  EXPECT_EQ(Next(Next(job, PauseAsked{}), kStopped).state(), v1::PAUSED);
  EXPECT_EQ(Next(Next(job, PauseAsked{}), kStopped).preempted_by(), "");
  EXPECT_EQ(Next(Next(job, CancelAsked{}), kStopped).state(), v1::CANCELLED);
}

TEST(PreemptionTest, AGangThatBreaksMeanwhileRecoversAndItsAgeBeginsAnew) {
  const v1::Job job = Next(RunningAt(40), Preempted{"b-2"});
  const v1::Job broken =
      Next(job, RanksObserved{{Reported(0, v1::RANK_FAILED, v1::REASON_RANK_DIED, "signal 9")}});
  EXPECT_EQ(broken.state(), v1::RECOVERING);
  EXPECT_EQ(broken.resumed_unix_ms(), kNow + 1);
}

}  // namespace
}  // namespace terrace
