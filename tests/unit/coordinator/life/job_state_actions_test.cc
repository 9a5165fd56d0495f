// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/life/job_state.h"
#include "tests/unit/coordinator/life/job_state_jobs.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ActionsTest, MissingRanksOfAStartingGangAreStartedPerWorker) {
  const std::vector<RankView> ranks = {Absent(0, Presence::kMissing), Absent(1, Presence::kMissing),
                                       Absent(2, Presence::kMissing), Absent(3, Presence::kAway)};
  EXPECT_THAT(ActionsFor(JobIn(v1::STARTING), ranks),
              ElementsAre(Action{Action::Kind::kStart, "w0", {0, 1}},
                          Action{Action::Kind::kStart, "w1", {2}}));
}

TEST(ActionsTest, ReadyRanksOfARunningGangAreToldToGoUntilTheyRun) {
  EXPECT_THAT(
      ActionsFor(JobIn(v1::RUNNING), {Reported(0, v1::RANK_RUNNING), Reported(1, v1::RANK_READY),
                                      Reported(2, v1::RANK_RUNNING)}),
      ElementsAre(Action{Action::Kind::kGo, "w0", {}}));
  EXPECT_THAT(ActionsFor(JobIn(v1::STARTING), {Reported(0, v1::RANK_READY)}), IsEmpty());
}

TEST(ActionsTest, ACancelledRunStopsWithACheckpointUntilItsRanksEnd) {
  v1::Job job = JobIn(v1::RUNNING);
  job.set_cancel_requested(true);
  EXPECT_THAT(ActionsFor(job, {Reported(0, v1::RANK_RUNNING), Reported(2, v1::RANK_SUCCEEDED)}),
              ElementsAre(Action{Action::Kind::kStopWithCheckpoint, "w0", {}}));
}

TEST(ActionsTest, RanksOfAnotherEpochOfAnEndedOrOfAnUnknownJobAreStray) {
  v1::RankReport report;
  report.set_epoch(3);
  const v1::Job running = JobIn(v1::RUNNING);
  EXPECT_FALSE(IsStray(&running, report));
  const v1::Job starting = JobIn(v1::STARTING);
  EXPECT_FALSE(IsStray(&starting, report));
  for (const v1::JobState state : {v1::RECOVERING, v1::QUEUED, v1::SUCCEEDED, v1::FAILED}) {
    const v1::Job job = JobIn(state);
    EXPECT_TRUE(IsStray(&job, report)) << v1::JobState_Name(state);
  }
  report.set_epoch(2);
  EXPECT_TRUE(IsStray(&running, report));
  report.set_epoch(4);
  EXPECT_TRUE(IsStray(&running, report));
  EXPECT_TRUE(IsStray(nullptr, report));
}

}  // namespace
}  // namespace terrace
