// Time limits: what counts, and how a job that reaches its limit ends.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/time_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/jobs/reconciler_fixture.h"
#include "tests/unit/coordinator/life/job_state_jobs.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kLimitMs = 60'000;

v1::Job Running() {
  v1::Job job = JobIn(v1::QUEUED);
  job.mutable_spec()->set_time_limit_seconds(kLimitMs / 1000);
  const auto placed = Apply(job, Placed{}, kNow);
  EXPECT_TRUE(placed.ok()) << placed.status();
  job = placed->job;
  job.set_state(v1::RUNNING);
  job.mutable_progress()->set_checkpoint_step(40);
  job.mutable_progress()->set_step(42);
  return job;
}

v1::Job After(const v1::Job& job, int64_t ms, const JobInput& input) {
  const auto transition = Apply(job, input, kNow + ms);
  EXPECT_TRUE(transition.ok()) << transition.status();
  return transition.ok() && transition->changed ? transition->job : job;
}

const RanksObserved kRun{{Reported(0, v1::RANK_RUNNING), Reported(1, v1::RANK_RUNNING)}};
const RanksObserved kStopped{{StoppedEarly(0), StoppedEarly(1)}};
const RanksObserved kDied{{Reported(0, v1::RANK_FAILED, v1::REASON_RANK_DIED, "signal 9")}};

TEST(TimeLimitTest, AtItsLimitAJobWritesACheckpointAndEnds) {
  v1::Job job = After(Running(), kLimitMs - 1, kRun);
  EXPECT_EQ(job.time_limit_unix_ms(), 0);
  EXPECT_THAT(ActionsFor(job, kRun.ranks), ElementsAre());
  job = After(job, kLimitMs, kRun);
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_EQ(job.reason(), v1::REASON_TIME_LIMIT);
  EXPECT_EQ(job.message(), "its time limit of 1m is reached: stops after a last checkpoint");
  EXPECT_EQ(job.time_limit_unix_ms(), kNow + kLimitMs);
  EXPECT_THAT(ActionsFor(job, kRun.ranks),
              ElementsAre(Action{Action::Kind::kStopWithCheckpoint, "w0", {}}));
  EXPECT_FALSE(Apply(job, kRun, kNow + kLimitMs + 1)->changed);
  job = After(job, kLimitMs + 2000, kStopped);
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_TIME_LIMIT);
  EXPECT_EQ(job.message(),
            "its time limit of 1m was reached at step 42 of 100; submit it again to go on from the "
            "checkpoint of step 40");
}

TEST(TimeLimitTest, OnlyTimeWithDevicesCountsOverAllGangs) {
  v1::Job job = After(Running(), 20'000, PauseAsked{.force = true});
  EXPECT_EQ(HeldSeconds(job, kNow + 500'000), 20) << "a paused job holds nothing";
  job = After(job, 500'000, ResumeAsked{});
  job = After(job, 600'000, Placed{});
  EXPECT_EQ(HeldSeconds(job, kNow + 610'000), 30);
  EXPECT_FALSE(HasReachedTimeLimit(job, kNow + 639'999));
  EXPECT_TRUE(HasReachedTimeLimit(job, kNow + 640'000));
}

TEST(TimeLimitTest, AGangThatBreaksAtTheLimitIsNotStartedAgain) {
  v1::Job job = After(After(Running(), kLimitMs, kRun), kLimitMs + 1, kDied);
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_TIME_LIMIT);
  EXPECT_THAT(job.message(), HasSubstr("signal 9"));
  EXPECT_EQ(job.restarts(), 0);
}

TEST(TimeLimitTest, AJobThatDoesNotStopEndsAfterTheGrace) {
  v1::Job job = After(Running(), kLimitMs, kRun);
  job = After(job, kLimitMs + kTimeLimitGraceMs - 1, kRun);
  EXPECT_EQ(job.state(), v1::RUNNING);
  job = After(job, kLimitMs + kTimeLimitGraceMs, kRun);
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_THAT(job.message(), HasSubstr("a last checkpoint was not written in time"));
}

TEST(TimeLimitTest, ACancelGoesBeforeALimitAndALimitBeforeAPause) {
  const v1::Job job = After(Running(), kLimitMs, kRun);
  EXPECT_EQ(After(After(job, kLimitMs, CancelAsked{}), kLimitMs, kStopped).state(), v1::CANCELLED);
  const v1::Job cancelled = After(job, kLimitMs, CancelAsked{});
  EXPECT_EQ(After(cancelled, kLimitMs + kTimeLimitGraceMs, kRun).state(), v1::CANCELLED)
      << "also where the ranks do not stop";
  EXPECT_THAT(Apply(job, PauseAsked{}, kNow + kLimitMs).status().message(),
              HasSubstr("its time limit is reached"));
  const v1::Job paused = After(After(Running(), 1, PauseAsked{}), kLimitMs, kRun);
  EXPECT_EQ(After(paused, kLimitMs, kStopped).reason(), v1::REASON_TIME_LIMIT);
}

TEST(TimeLimitTest, LastStepsAtTheLimitAreSuccess) {
  const RanksObserved done{{Reported(0, v1::RANK_SUCCEEDED), Reported(1, v1::RANK_SUCCEEDED)}};
  EXPECT_EQ(After(After(Running(), kLimitMs, kRun), kLimitMs, done).state(), v1::SUCCEEDED);
}

TEST(TimeLimitTest, TheCoordinatorsDefaultAndMaximum) {
  v1::JobSpec spec;
  EXPECT_EQ(*AdmittedTimeLimit(spec, {}), 0);
  const QueueOptions both{.time_limit_default_seconds = 60, .time_limit_max_seconds = 3600};
  EXPECT_EQ(*AdmittedTimeLimit(spec, both), 60);
  EXPECT_EQ(*AdmittedTimeLimit(spec, {.time_limit_max_seconds = 3600}), 3600);
  spec.set_time_limit_seconds(3600);
  EXPECT_EQ(*AdmittedTimeLimit(spec, both), 3600);
  spec.set_time_limit_seconds(3601);
  const auto refused = AdmittedTimeLimit(spec, both);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_THAT(refused.status().message(), HasSubstr("time_limit: got 1h1s"));
  EXPECT_THAT(refused.status().message(), HasSubstr("at most 1h"));
}

TEST(TimeLimitTest, WhatIsLeftIsCountedByTheLastStepOrThePlan) {
  v1::Job job = Running();
  EXPECT_EQ(RemainingSeconds(job), 0) << "nothing is known";
  job.mutable_plan()->mutable_time()->set_step_seconds(2);
  EXPECT_EQ(RemainingSeconds(job), 116);
  job.mutable_progress()->set_step_seconds(0.5);
  EXPECT_EQ(RemainingSeconds(job), 29);
  job.set_state(v1::SUCCEEDED);
  EXPECT_EQ(RemainingSeconds(job), 0);
}

using TimeLimitOfGangTest = ReconcilerTest;

TEST_F(TimeLimitOfGangTest, ALimitOutlivesTheCoordinatorAndIsCounted) {
  AddWorker("w0", 1);
  v1::JobSpec spec = Spec("a");
  spec.set_time_limit_seconds(60);
  const std::string job = RunningJob(spec);
  Pass(20'000);
  StartCoordinator();
  Connect(*workers_["w0"]);
  EXPECT_NEAR(JobNow(job).held_seconds(), 20, 1);
  Pass(39'000);
  EXPECT_EQ(JobNow(job).state(), v1::RUNNING);
  EXPECT_EQ(reconciler_->Stats().time_limits, 0);
  Pass(3'000);
  EXPECT_EQ(JobNow(job).state(), v1::FAILED);
  EXPECT_EQ(JobNow(job).reason(), v1::REASON_TIME_LIMIT);
  EXPECT_EQ(reconciler_->Stats().time_limits, 1);
  EXPECT_EQ(JobNow(Submit(Spec("b"))).state(), v1::STARTING) << "its device is free";
}

}  // namespace
}  // namespace terrace
