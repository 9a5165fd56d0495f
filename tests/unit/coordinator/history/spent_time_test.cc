// Where a job's time goes: rules by example, and the sum over random lives.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/history/spent_time.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "coordinator/life/job_state.h"
#include "tests/unit/coordinator/life/job_state_jobs.h"

namespace terrace {
namespace {

// A job whose inputs come at times that a test says.
class Life {
 public:
  explicit Life(v1::Job job) : job_(std::move(job)) {}

  bool Add(const JobInput& input, int64_t unix_ms) {
    const auto next = Apply(job_, input, unix_ms);
    if (!next.ok()) return false;
    if (next->changed) job_ = next->job;
    return true;
  }
  void Step(int64_t step, int64_t unix_ms, Progressed told = {}) {
    told.progress = job_.progress();
    told.progress.set_step(step);
    ASSERT_TRUE(Add(told, unix_ms));
  }
  double Seconds(std::string_view cause) const {
    for (const v1::SpentTime& spent : job_.spent()) {
      if (spent.cause() == cause) return spent.seconds();
    }
    return 0;
  }
  double Wall() const { return TimeSpentUntil(job_, job_.spent_unix_ms()).wall_seconds; }
  const v1::Job& job() const { return job_; }

 private:
  v1::Job job_;
};

Placed OneRank() {
  Placed placed;
  placed.placement.add_ranks()->set_worker("w0");
  return placed;
}
RanksObserved Seen(v1::RankState state, v1::Reason reason = v1::REASON_NONE) {
  return {{Reported(0, state, reason, "word")}};
}

// Submitted at kNow; runs from 15 s after it.
Life Running() {
  Life life(NewJob("a-1", JobIn(v1::PENDING).spec(), kNow));
  EXPECT_TRUE(life.Add(PlanningStarted{}, kNow + 1000));
  EXPECT_TRUE(life.Add(Planned{}, kNow + 3000));
  EXPECT_TRUE(life.Add(OneRank(), kNow + 10'000));
  EXPECT_TRUE(life.Add(Seen(v1::RANK_READY), kNow + 15'000));
  EXPECT_EQ(life.job().state(), v1::RUNNING);
  return life;
}

TEST(SpentTimeTest, AStateSaysWhatAJobThatDoesNotRunWaitsFor) {
  const Life life = Running();
  EXPECT_DOUBLE_EQ(life.Seconds("planning"), 3);
  EXPECT_DOUBLE_EQ(life.Seconds("queued"), 7);
  EXPECT_DOUBLE_EQ(life.Seconds("starting"), 5);
  EXPECT_DOUBLE_EQ(life.Wall(), 15);
}

TEST(SpentTimeTest, TheEndOfAStepSaysThatTheTimeBeforeItWasForTraining) {
  Life life = Running();
  life.Step(0, kNow + 16'000);
  EXPECT_DOUBLE_EQ(life.Seconds("training"), 0) << "no step has ended";
  life.Step(1, kNow + 20'000);
  EXPECT_DOUBLE_EQ(life.Seconds("training"), 5);
  EXPECT_EQ(life.job().first_step_unix_ms(), kNow + 20'000);
}

TEST(SpentTimeTest, EvaluationsAndCheckpointsAreTakenOffTraining) {
  Life life = Running();
  life.Step(1, kNow + 25'000, {.evaluating_seconds = 3, .checkpoint_seconds = 2});
  EXPECT_DOUBLE_EQ(life.Seconds("evaluating"), 3);
  EXPECT_DOUBLE_EQ(life.Seconds("checkpoint"), 2);
  EXPECT_DOUBLE_EQ(life.Seconds("training"), 5);
}

TEST(SpentTimeTest, MoreThanHasPassedIsNotCounted) {
  Life life = Running();
  life.Step(1, kNow + 16'000, {.evaluating_seconds = 30, .checkpoint_seconds = 0.25});
  EXPECT_DOUBLE_EQ(life.Seconds("checkpoint"), 0.25);
  EXPECT_DOUBLE_EQ(life.Seconds("evaluating"), 0.75);
  EXPECT_DOUBLE_EQ(life.Seconds("training"), 0);
}

TEST(SpentTimeTest, AfterAFailureTimeIsLostUntilNewStepsAreDone) {
  Life life = Running();
  life.Step(8, kNow + 23'000);
  ASSERT_TRUE(life.Add(Seen(v1::RANK_FAILED), kNow + 24'000));
  ASSERT_EQ(life.job().state(), v1::RECOVERING);
  ASSERT_TRUE(life.Add(OneRank(), kNow + 26'000));
  life.Step(4, kNow + 27'000);
  ASSERT_TRUE(life.Add(Seen(v1::RANK_READY), kNow + 28'000));
  life.Step(8, kNow + 32'000, {.repeated_share = 1});
  life.Step(10, kNow + 34'000, {.repeated_share = 0.5});
  EXPECT_DOUBLE_EQ(life.Seconds("recovering"), 5) << "with the step that nobody finished";
  EXPECT_DOUBLE_EQ(life.Seconds("repeated"), 5);
  EXPECT_DOUBLE_EQ(life.Seconds("training"), 9);
  EXPECT_DOUBLE_EQ(life.job().last_restarts(0).recovery_seconds(), 8);
}

RanksObserved Stopped() { return {{StoppedEarly(0)}}; }

TEST(SpentTimeTest, WhileAJobIsPausedNothingIsLost) {
  Life life = Running();
  life.Step(4, kNow + 20'000);
  ASSERT_TRUE(life.Add(PauseAsked{}, kNow + 20'500));
  life.Step(5, kNow + 21'000, {.checkpoint_seconds = 0.25});
  ASSERT_TRUE(life.Add(Stopped(), kNow + 22'000));
  ASSERT_EQ(life.job().state(), v1::PAUSED);
  EXPECT_DOUBLE_EQ(PausedSeconds(life.job(), kNow + 82'000), 61);
  ASSERT_TRUE(life.Add(ResumeAsked{}, kNow + 82'000));
  ASSERT_TRUE(life.Add(OneRank(), kNow + 85'000));
  ASSERT_TRUE(life.Add(Seen(v1::RANK_READY), kNow + 87'000));
  life.Step(6, kNow + 88'000);
  EXPECT_DOUBLE_EQ(life.Seconds("training"), 6.75);
  EXPECT_DOUBLE_EQ(life.Seconds("checkpoint"), 0.25);
  EXPECT_DOUBLE_EQ(life.Seconds("paused"), 61) << "with the end of its gang";
  EXPECT_DOUBLE_EQ(life.Seconds("queued"), 10);
  EXPECT_DOUBLE_EQ(life.Seconds("starting"), 7);
  EXPECT_DOUBLE_EQ(life.Seconds("recovering"), 0);
  EXPECT_DOUBLE_EQ(life.Wall(), 88);
}

TEST(SpentTimeTest, AStepThatAForcedPauseCutsOffIsLost) {
  Life life = Running();
  life.Step(4, kNow + 20'000);
  ASSERT_TRUE(life.Add(PauseAsked{.force = true}, kNow + 23'000));
  EXPECT_DOUBLE_EQ(life.Seconds("recovering"), 3);
  EXPECT_DOUBLE_EQ(life.Seconds("paused"), 0);
}

TEST(SpentTimeTest, ARestartThatIsPausedTakesNoLongerForIt) {
  Life life = Running();
  life.Step(4, kNow + 20'000);
  ASSERT_TRUE(life.Add(Seen(v1::RANK_FAILED), kNow + 21'000));
  ASSERT_TRUE(life.Add(PauseAsked{}, kNow + 22'000));
  ASSERT_TRUE(life.Add(ResumeAsked{}, kNow + 122'000));
  ASSERT_TRUE(life.Add(OneRank(), kNow + 123'000));
  ASSERT_TRUE(life.Add(Seen(v1::RANK_READY), kNow + 125'000));
  life.Step(5, kNow + 126'000);
  EXPECT_DOUBLE_EQ(life.job().last_restarts(0).recovery_seconds(), 5);
  EXPECT_DOUBLE_EQ(life.Seconds("paused"), 100);
  EXPECT_DOUBLE_EQ(life.Seconds("recovering"), 5);
}

TEST(SpentTimeTest, AJobThatHasRecoveredWaitsForItsResumptionLikeAnyOther) {
  Life life = Running();
  ASSERT_TRUE(life.Add(Seen(v1::RANK_FAILED), kNow + 16'000));
  ASSERT_TRUE(life.Add(OneRank(), kNow + 16'000));
  ASSERT_TRUE(life.Add(Seen(v1::RANK_READY), kNow + 16'000));
  life.Step(1, kNow + 17'000);
  ASSERT_TRUE(life.Add(PauseAsked{.force = true}, kNow + 17'000));
  ASSERT_TRUE(life.Add(ResumeAsked{}, kNow + 18'000));
  ASSERT_TRUE(life.Add(OneRank(), kNow + 21'000));
  EXPECT_DOUBLE_EQ(life.Seconds("queued"), 10);
}

TEST(SpentTimeTest, AJobThatHasEndedCountsNothingMore) {
  Life life = Running();
  ASSERT_TRUE(life.Add(CancelAsked{.force = true}, kNow + 17'000));
  EXPECT_DOUBLE_EQ(life.Wall(), 17);
  EXPECT_DOUBLE_EQ(TimeSpentUntil(life.job(), kNow + 90'000).wall_seconds, 17);
}

TEST(SpentTimeTest, AClockThatIsSetBackCountsNoTimeTwice) {
  Life life = Running();
  life.Step(1, kNow + 20'000);
  life.Step(2, kNow + 10'000);
  life.Step(3, kNow + 21'000);
  EXPECT_DOUBLE_EQ(life.Wall(), 21);
  EXPECT_DOUBLE_EQ(life.Seconds("training"), 6);
}

TEST(SpentTimeTest, TheLossOfARankIsDatedByItsLastWords) {
  Life life = Running();
  RanksObserved lost = Seen(v1::RANK_FAILED);
  lost.ranks[0].report.mutable_progress()->set_updated_unix_ms(kNow + 16'600);
  ASSERT_TRUE(life.Add(lost, kNow + 17'000));
  EXPECT_DOUBLE_EQ(life.job().last_restarts(0).detection_seconds(), 0.4);
}

TEST(SpentTimeTest, TheLossOfAWorkerIsDatedByItsSilence) {
  Life life = Running();
  RankView view = Absent(0, Presence::kLost);
  view.silent_seconds = 3.2;
  ASSERT_TRUE(life.Add(RanksObserved{{view}}, kNow + 17'000));
  EXPECT_DOUBLE_EQ(life.job().last_restarts(0).detection_seconds(), 3.2);
}

// ---- random lives -----------------------------------------------------------------------------

JobInput AnyInput(const v1::Job& job, std::mt19937* random) {
  switch ((*random)() % 14) {
    case 0:
      return PlanningStarted{};
    case 1:
      return Planned{};
    case 2:
      return MustWait{v1::REASON_WAITING_FOR_DEVICES, "wait"};
    case 3:
    case 4:
      return OneRank();
    case 5:
      return Seen(v1::RANK_READY);
    case 6:
      return Seen(v1::RANK_FAILED);
    case 7:
      return (*random)() % 8 == 0 ? JobInput(CancelAsked{.force = true})
                                  : JobInput(Seen(v1::RANK_RUNNING));
    case 8:
      return (*random)() % 2 == 0 ? JobInput(PauseAsked{.force = (*random)() % 3 == 0})
                                  : JobInput(Stopped());
    case 9:
      return ResumeAsked{};
    default: {
      Progressed told{.progress = job.progress(),
                      .repeated_share = static_cast<double>((*random)() % 3) / 2,
                      .evaluating_seconds = static_cast<double>((*random)() % 3),
                      .checkpoint_seconds = static_cast<double>((*random)() % 3)};
      told.progress.set_step(job.progress().step() + static_cast<int64_t>((*random)() % 3));
      if ((*random)() % 4 == 0) told.progress.set_checkpoint_step(told.progress.step());
      return told;
    }
  }
}

TEST(SpentTimeTest, InEveryLifeTheCausesSumToTheTimeThatHasPassed) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    v1::JobSpec spec = JobIn(v1::PENDING).spec();
    spec.set_max_restarts(1000);
    Life life(NewJob("a-1", spec, kNow));
    int64_t now = kNow;
    double before = 0;
    for (int i = 0; i < 200; ++i) {
      now += static_cast<int64_t>(random() % 5000);
      life.Add(AnyInput(life.job(), &random), now);
      const SpentUntil spent = TimeSpentUntil(life.job(), now);
      const double sum = std::accumulate(spent.seconds.begin(), spent.seconds.end(), 0.0);
      ASSERT_NEAR(sum, spent.wall_seconds, 1e-6);
      ASSERT_GE(sum, before - 1e-9) << "a counter never falls";
      before = sum;
      ASSERT_LE(spent.wall_seconds, static_cast<double>(now - kNow) / 1000 + 1e-9);
      if (HasEnded(life.job().state())) {
        ASSERT_EQ(life.job().spent_unix_ms(), life.job().finished_unix_ms());
      } else if (life.job().state() != v1::RUNNING) {
        ASSERT_NEAR(spent.wall_seconds, static_cast<double>(now - kNow) / 1000, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace terrace
