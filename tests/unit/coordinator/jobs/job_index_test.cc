// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/job_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/jobs/pace.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

v1::Job JobOf(const std::string& id, v1::JobState state, bool planned = true) {
  v1::Job job;
  job.set_id(id);
  job.set_state(state);
  if (planned) job.mutable_plan();
  return job;
}

void Place(v1::Job* job, const std::vector<std::string>& workers) {
  job->clear_placement();
  for (const std::string& worker : workers)
    job->mutable_placement()->add_ranks()->set_worker(worker);
  job->set_epoch(job->epoch() + 1);
}

TEST(JobIndexTest, AJobIsWhereItsStateSays) {
  JobIndex index;
  v1::Job job = JobOf("a-2", v1::PENDING, /*planned=*/false);
  index.Put(job);
  EXPECT_THAT(index.unplanned(), ElementsAre("a-2"));
  EXPECT_THAT(index.waiting(), IsEmpty());

  job = JobOf("a-2", v1::QUEUED);
  index.Put(job);
  EXPECT_THAT(index.unplanned(), IsEmpty());
  EXPECT_THAT(index.waiting(), ElementsAre(Pair(2, "a-2")));

  job.set_state(v1::RUNNING);
  Place(&job, {"w0"});
  index.Put(job);
  EXPECT_THAT(index.waiting(), IsEmpty());
  EXPECT_THAT(index.with_gang(), ElementsAre("a-2"));

  job.set_state(v1::RECOVERING);
  job.add_adjustments();  // without its layout yet
  index.Put(job);
  EXPECT_THAT(index.shrinking(), ElementsAre("a-2"));
  EXPECT_THAT(index.waiting(), IsEmpty());

  job.mutable_adjustments(0)->mutable_layout();
  index.Put(job);
  EXPECT_THAT(index.shrinking(), IsEmpty());
  EXPECT_THAT(index.waiting(), ElementsAre(Pair(2, "a-2")));
}

TEST(JobIndexTest, AJobWithAPlanThatNobodyMatchesIsPlannedAnewAndPlacedAsItIs) {
  JobIndex index;
  v1::Job job = JobOf("a-1", v1::QUEUED);
  job.set_reason(v1::REASON_NO_MATCHING_WORKER);
  index.Put(job);
  EXPECT_THAT(index.unplanned(), ElementsAre("a-1"));
  EXPECT_THAT(index.waiting(), ElementsAre(Pair(1, "a-1")));
}

TEST(JobIndexTest, WaitingJobsAreInOrderOfSubmission) {
  JobIndex index;
  for (const char* id : {"z-2", "a-10", "m-9"}) index.Put(JobOf(id, v1::QUEUED));
  EXPECT_THAT(index.waiting(), ElementsAre(Pair(2, "z-2"), Pair(9, "m-9"), Pair(10, "a-10")));
}

TEST(JobIndexTest, AGangThatMovesIsFoundWhereItIs) {
  JobIndex index;
  v1::Job job = JobOf("a-1", v1::RUNNING);
  Place(&job, {"w0", "w1", "w0"});
  index.Put(job);
  EXPECT_THAT(index.On("w0"), ElementsAre("a-1"));
  EXPECT_THAT(index.On("w1"), ElementsAre("a-1"));

  Place(&job, {"w1", "w2"});
  index.Put(job);
  EXPECT_THAT(index.On("w0"), IsEmpty());
  EXPECT_THAT(index.On("w1"), ElementsAre("a-1"));
  EXPECT_THAT(index.On("w2"), ElementsAre("a-1"));

  job.set_state(v1::PAUSED);
  index.Put(job);
  EXPECT_THAT(index.On("w1"), IsEmpty());
}

TEST(JobIndexTest, AnEndedJobIsNowhere) {
  JobIndex index;
  v1::Job job = JobOf("a-1", v1::RUNNING);
  job.mutable_spec()->mutable_checkpoint()->set_directory("/ck/a/");
  Place(&job, {"w0"});
  index.Put(job);
  index.Put(JobOf("b-2", v1::QUEUED));
  EXPECT_EQ(index.WriterTo("/ck/a"), "a-1");
  index.Erase("a-1");
  index.Erase("b-2");
  index.Erase("never-3");
  EXPECT_EQ(index.WriterTo("/ck/a"), "");
  EXPECT_THAT(index.with_gang(), IsEmpty());
  EXPECT_THAT(index.waiting(), IsEmpty());
  EXPECT_THAT(index.On("w0"), IsEmpty());
}

TEST(PaceTest, WorkTakesATenthOfTheTimeAndShortWorkIsNeverHeldBack) {
  constexpr int64_t kMs = 1'000'000;
  Pace pace;
  EXPECT_TRUE(pace.IsDue(0));
  pace.Took(0, 20 * kMs);
  EXPECT_FALSE(pace.IsDue(199 * kMs));
  EXPECT_TRUE(pace.IsDue(200 * kMs));
  pace.Took(200 * kMs, 200 * kMs + kMs / 2);
  EXPECT_TRUE(pace.IsDue(200 * kMs + kMs / 2));
}

}  // namespace
}  // namespace terrace
