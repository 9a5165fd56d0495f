// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

// Pages of the list of jobs, and jobs that have ended and are in the store only.
namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

class ListTest : public ReconcilerTest {
 protected:
  // The first one has the only device, the others wait; of those the ones at odd places have ended.
  std::vector<std::string> Jobs(int count) {
    AddWorker("w0", 1);
    std::vector<std::string> ids = {RunningJob(Spec("job"))};
    for (int i = 1; i < count; ++i)
      ids.push_back(reconciler_
                        ->Submit(Spec("job"), PrepareFake(Spec("job"), Budget{.ranks = 1}),
                                 {.owner = i % 3 == 0 ? "alice" : "bob"})
                        ->id());
    for (int i = 1; i < count; i += 2)
      EXPECT_TRUE(reconciler_->Cancel(ids[static_cast<size_t>(i)], false).ok());
    return ids;
  }

  v1::ListPageResponse Page(const JobFilter& filter, const PageOf& page) const {
    const auto response = reconciler_->ListPage(filter, page);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::ListPageResponse();
  }
  // From page to page until there is no next one.
  std::vector<std::string> AllPages(const JobFilter& filter, int64_t limit, bool whole) const {
    std::vector<std::string> ids;
    for (int64_t before = INT64_MAX; before != 0;) {
      const v1::ListPageResponse page =
          Page(filter, {.before = before, .limit = limit, .whole = whole});
      for (const v1::JobSummary& job : page.summaries()) ids.push_back(job.id());
      for (const v1::Job& job : page.jobs()) ids.push_back(job.id());
      EXPECT_LE(page.summaries_size() + page.jobs_size(), limit);
      before = page.next();
    }
    return ids;
  }
  static std::map<v1::JobState, int64_t> CountsOf(const v1::ListPageResponse& page) {
    std::map<v1::JobState, int64_t> counts;
    for (const auto& count : page.counts()) counts[count.state()] = count.jobs();
    return counts;
  }
};

TEST_F(ListTest, PagesOfAnySizeHaveEachJobOnceTheNewestFirst) {
  std::vector<std::string> ids = Jobs(12);
  std::reverse(ids.begin(), ids.end());
  for (int start = 0; start < 2; ++start) {
    for (const int64_t limit : {1, 2, 5, 11, 12, 13}) {
      EXPECT_EQ(AllPages({}, limit, /*whole=*/false), ids) << limit;
      EXPECT_EQ(AllPages({}, limit, /*whole=*/true), ids) << limit;
    }
    StartCoordinator();
  }
}

TEST_F(ListTest, APageSaysHowManyJobsOfEachStateMatch) {
  const std::vector<std::string> ids = Jobs(12);
  const v1::ListPageResponse all = Page({}, {.limit = 1});
  EXPECT_THAT(CountsOf(all), UnorderedElementsAre(Pair(v1::RUNNING, 1), Pair(v1::QUEUED, 5),
                                                  Pair(v1::CANCELLED, 6)));
  const v1::ListPageResponse bobs = Page({.owner = "bob"}, {.limit = 1});
  EXPECT_THAT(CountsOf(bobs), UnorderedElementsAre(Pair(v1::QUEUED, 4), Pair(v1::CANCELLED, 4)));
  const v1::ListPageResponse ended = Page({.states = {v1::CANCELLED}}, {.limit = 1});
  EXPECT_THAT(CountsOf(ended), ElementsAre(Pair(v1::CANCELLED, 6)));
  EXPECT_EQ(ended.summaries(0).id(), ids[11]);
  EXPECT_EQ(Page({.states = {v1::QUEUED}}, {.limit = 1}).summaries(0).id(), ids[10]);
}

TEST_F(ListTest, TextIsFoundInWhatIsShownOfAJob) {
  const std::vector<std::string> ids = Jobs(4);
  EXPECT_THAT(AllPages({.text = ids[1]}, 10, false), ElementsAre(ids[1])) << "it has ended";
  EXPECT_THAT(AllPages({.text = "JOB-3"}, 10, false), ElementsAre(ids[2]));
  EXPECT_THAT(AllPages({.text = "free"}, 10, false), ElementsAre(ids[2])) << "why it waits";
  EXPECT_THAT(AllPages({.text = "nowhere"}, 10, false), IsEmpty());
}

TEST_F(ListTest, SkippedJobsAreThoseBeforeThePage) {
  const std::vector<std::string> ids = Jobs(6);
  const v1::ListPageResponse page = Page({}, {.skipped = 2, .limit = 2});
  ASSERT_EQ(page.summaries_size(), 2);
  EXPECT_EQ(page.summaries(0).id(), ids[3]);
  EXPECT_EQ(page.summaries(1).id(), ids[2]);
  EXPECT_EQ(Page({}, {.skipped = 6, .limit = 2}).summaries_size(), 0);
}

TEST_F(ListTest, APageOfWholeJobsEndsWhereItHasAMegabyte) {
  AddWorker("w0", 1);
  RunningJob(Spec("runs"));
  v1::JobSpec spec = Spec("large");
  spec.mutable_data()->add_train(std::string(700'000, 'x'));
  for (int i = 0; i < 3; ++i) Submit(spec);
  EXPECT_EQ(Page({}, {.whole = true}).jobs_size(), 2);
  EXPECT_EQ(AllPages({}, 100, /*whole=*/true).size(), 4u);
  EXPECT_EQ(Page({}, {}).summaries_size(), 4) << "rows are small";
}

TEST_F(ListTest, WhatAnEarlierVersionHasEndedIsPutAside) {
  const std::vector<std::string> ids = Jobs(4);
  v1::Job ended = *store_.GetJob(ids[0]);
  ended.set_state(v1::FAILED);
  ASSERT_TRUE(store_.Commit({.jobs = {ended}}).ok());  // and says nothing in short
  StartCoordinator();
  EXPECT_TRUE(reconciler_->IsOver(ids[0]));
  EXPECT_EQ(store_.ListActiveJobs()->size(), 1u);
  EXPECT_THAT(AllPages({.states = {v1::FAILED}}, 10, false), ElementsAre(ids[0]));
  EXPECT_EQ(CountsOf(Page({}, {}))[v1::FAILED], 1);
}

TEST_F(ListTest, NoJobEndsBecauseTheStoreCannotBeRead) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string first = RunningJob(Spec("first"));
  Submitted as;
  as.after.Add()->set_job(first);
  const std::string second =
      reconciler_->Submit(Spec("second", 2), absl::NotFoundError("no worker is so large"), as)
          ->id();
  w0.SetAll(first, v1::RANK_SUCCEEDED);
  Pass(2000);
  ASSERT_EQ(JobNow(first).state(), v1::SUCCEEDED);
  store_.unreadable = true;
  StartCoordinator();
  Pass(2000);
  EXPECT_FALSE(reconciler_->IsOver(second));
  store_.unreadable = false;
  Pass(20'000);
  EXPECT_EQ(JobNow(second).state(), v1::QUEUED);
  EXPECT_EQ(JobNow(second).reason(), v1::REASON_NO_MATCHING_WORKER);
}

TEST_F(ListTest, AJobMayWaitForOneThatEndedBeforeTheCoordinatorStarted) {
  const std::vector<std::string> ids = Jobs(2);
  StartCoordinator();
  Dependencies after;
  v1::Dependency& dependency = *after.Add();
  dependency.set_job(ids[1]);
  dependency.set_condition(v1::DEPENDENCY_ENDED);
  EXPECT_TRUE(reconciler_->CheckAfter(after).ok());
  dependency.set_condition(v1::DEPENDENCY_SUCCEEDED);
  EXPECT_EQ(reconciler_->CheckAfter(after).code(), absl::StatusCode::kFailedPrecondition);
  dependency.set_job("job-99");
  EXPECT_EQ(reconciler_->CheckAfter(after).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace
