// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

// What must not grow with the number of jobs, and what must not wait although there are many.
namespace terrace {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

constexpr int kQueued = 100;
constexpr int kGang = 8;

class ScaleTest : public ReconcilerTest {
 protected:
  // Behind one job that has the only device.
  std::vector<std::string> Queue(int jobs) {
    AddWorker("w0", 1);
    RunningJob(Spec("runs"));
    std::vector<std::string> queue;
    for (int i = 0; i < jobs; ++i) queue.push_back(Submit(Spec("waits")));
    return queue;
  }
  // Of one rank on each of kGang workers.
  std::string LargeGang() {
    for (int i = 0; i < kGang; ++i) AddWorker(absl::StrCat("w", i), 1);
    return RunningJob(Spec("large", 1, kGang));
  }
};

TEST_F(ScaleTest, ACancelInAQueueWritesNoOtherJob) {
  const std::vector<std::string> queue = Queue(kQueued);
  EXPECT_THAT(JobNow(queue.back()).message(),
              EndsWith(absl::StrCat("job ", queue.front(), " is ahead of it")));
  const int before = store_.jobs_written;
  ASSERT_TRUE(reconciler_->Cancel(queue.front(), false).ok());
  Settle();
  EXPECT_EQ(store_.jobs_written - before, 1);
  EXPECT_THAT(JobNow(queue.back()).message(),
              EndsWith(absl::StrCat("job ", queue[1], " is ahead of it")))
      << "what it says is as of now all the same";
  const v1::ListPageResponse page = *reconciler_->ListPage({}, {.limit = 1});
  EXPECT_EQ(page.summaries(0).message(), JobNow(queue.back()).message());
}

TEST_F(ScaleTest, AQueueAtRestWritesNothing) {
  Queue(kQueued);
  Pass(2000);
  const int before = store_.jobs_written;
  Pass(5000);
  EXPECT_EQ(store_.jobs_written, before);
}

TEST_F(ScaleTest, WhyAJobWaitsIsThereAgainAfterARestart) {
  const std::vector<std::string> queue = Queue(3);
  ASSERT_TRUE(reconciler_->Cancel(queue.front(), false).ok());
  StartCoordinator();
  Connect(*workers_["w0"]);
  EXPECT_EQ(JobNow(queue.back()).reason(), v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_THAT(JobNow(queue.back()).message(), HasSubstr(queue[1]));
}

TEST_F(ScaleTest, ARestartWritesNoJobOfAQueueWhileWorkersComeBack) {
  const std::vector<std::string> queue = Queue(kQueued);
  const int before = store_.jobs_written;
  StartCoordinator();
  Pass(2000);  // nobody is registered
  EXPECT_EQ(store_.jobs_written, before);
  Connect(*workers_["w0"]);
  Pass(2000);
  EXPECT_LE(store_.jobs_written - before, 2) << "of the job that runs";
  EXPECT_EQ(JobNow(queue.back()).reason(), v1::REASON_WAITING_FOR_DEVICES);
}

TEST_F(ScaleTest, AWorkerThatDoesNotComeBackIsMissedAfterAWhile) {
  const std::vector<std::string> queue = Queue(1);
  StartCoordinator();
  workers_.clear();
  Pass(5000);
  EXPECT_EQ(JobNow(queue.back()).reason(), v1::REASON_WAITING_FOR_DEVICES);
  Pass(20'000);
  EXPECT_EQ(JobNow(queue.back()).reason(), v1::REASON_NO_MATCHING_WORKER);
}

TEST_F(ScaleTest, JobsThatNobodyMatchesAreToldOfThoseThatCome) {
  const std::string id = Submit(Spec("wide", 2));
  EXPECT_THAT(JobNow(id).message(), HasSubstr("no worker is registered"));
  const int before = store_.jobs_written;
  AddWorker("w0", 1);
  EXPECT_THAT(JobNow(id).message(), HasSubstr("0 of the 1 registered match"));
  EXPECT_EQ(store_.jobs_written, before) << "the reason is the same";
  AddWorker("w1", 2);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
}

TEST_F(ScaleTest, ARankOfALargeGangThatDiesIsNoticedAtOnce) {
  const std::string id = LargeGang();
  RankOf("w5", id, 5).set_state(v1::RANK_FAILED);
  RankOf("w5", id, 5).set_reason(v1::REASON_RANK_DIED);
  RankOf("w5", id, 5).set_message("killed by signal 9");
  Settle();
  EXPECT_EQ(JobNow(id).restarts(), 1);
}

TEST_F(ScaleTest, StepsOfALargeGangAreSeenFiveTimesASecond) {
  const std::string id = LargeGang();
  Pass(1000);
  RankOf("w0", id, 0).mutable_progress()->set_step(7);
  clock_.AdvanceMillis(200);
  Settle();
  EXPECT_EQ(JobNow(id).progress().step(), 7);
}

TEST_F(ScaleTest, OfManyJobsThatTrainEachIsWrittenLessOften) {
  constexpr int kJobs = 300;
  AddWorker("w0", kJobs);
  std::vector<std::string> jobs;
  for (int i = 0; i < kJobs; ++i) jobs.push_back(Submit(Spec("trains")));
  for (const std::string& id : jobs) workers_["w0"]->SetAll(id, v1::RANK_READY);
  Settle();
  int64_t step = 0;
  const auto train = [&](int64_t ms) {
    for (; ms > 0; ms -= 200) {
      ++step;
      for (auto& [key, report] : workers_["w0"]->ranks) report.mutable_progress()->set_step(step);
      clock_.AdvanceMillis(200);
      Settle();
    }
  };
  train(6000);
  const int before = store_.jobs_written;
  train(6000);  // 50 a second
  EXPECT_LE(store_.jobs_written - before, kJobs);
  EXPECT_GE(store_.jobs_written - before, kJobs - 50);
}

}  // namespace
}  // namespace terrace
