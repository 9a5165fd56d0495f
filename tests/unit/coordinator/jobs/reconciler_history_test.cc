// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/jobs/reconciler.h"
#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::WorkerMessage StepMessage(const std::string& job, int64_t step) {
  v1::WorkerMessage message;
  v1::JobEvent& event = *message.add_events();
  event.set_job(job);
  event.set_epoch(1);
  event.mutable_step()->set_step(step);
  return message;
}

TEST_F(ReconcilerTest, StepsAndMemoryOfARunningJobAreKept) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  Say(w0, StepMessage(id, 1));
  v1::TierMemory& tier = *RankOf("w0", id, 0).mutable_memory()->add_tiers();
  tier.set_tier(v1::DEVICE);
  tier.set_reserved_bytes(77);
  Pass(11'000);  // with points every five seconds
  const auto history = reconciler_->HistoryOf(id);
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_THAT(history->steps().step(), ElementsAre(1));
  EXPECT_THAT(history->memory().columns(0).bytes(), ElementsAre(77, 77));
  EXPECT_THAT(std::string(reconciler_->HistoryOf("b-9").status().message()), HasSubstr("b-9"));
}

class FragmentationTest : public ReconcilerTest {
 protected:
  void Start(const std::string& allocator_mode) {
    AddWorker("w0", 1);
    id_ = RunningJob(Spec("a"));
    v1::AllocatorStats& allocator = *Rank().mutable_memory()->mutable_allocator();
    allocator.set_mode(allocator_mode);
    allocator.set_reserved_bytes(100);
    allocator.set_allocated_bytes(60);
  }
  void Step(int64_t step) { Rank().mutable_progress()->set_step(step); }
  v1::RankReport& Rank() { return RankOf("w0", id_, 0); }
  std::vector<std::string> Warnings() const {
    std::vector<std::string> warnings;
    const auto events = store_.Events(id_, 0, 100);
    for (const v1::JobEvent& event : *events) {
      if (event.has_warning()) warnings.push_back(event.warning().text());
    }
    return warnings;
  }
  std::string id_;
};

TEST_F(FragmentationTest, IsToldOnceWithAdvice) {
  Start("caching");
  Pass(11'000);
  EXPECT_THAT(Warnings(), testing::IsEmpty()) << "before its first step nothing is in use";
  for (int64_t step = 1; step < 5; ++step) {
    Step(step);
    Pass(6'000);
  }
  EXPECT_THAT(Warnings(), ElementsAre(testing::AllOf(
                              HasSubstr("40 % of the memory that the caching allocator reserved"),
                              HasSubstr("layout.allocator: expandable"),
                              testing::Not(HasSubstr("try again")))));
}

TEST_F(FragmentationTest, SaysHowOftenAllocationsWereRetried) {
  Start("expandable");
  Rank().mutable_memory()->mutable_allocator()->set_retries(3);
  Step(1);
  Pass(11'000);
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("try again 3 times; layout.allocator: planned")));
}

TEST_F(FragmentationTest, IsNoneOfAPlannedArenaNorOfThreeTenths) {
  Start("planned");
  Step(1);
  Pass(11'000);
  Rank().mutable_memory()->mutable_allocator()->set_mode("caching");
  Rank().mutable_memory()->mutable_allocator()->set_allocated_bytes(71);
  Step(2);
  Pass(11'000);
  EXPECT_THAT(Warnings(), testing::IsEmpty());
}

TEST_F(ReconcilerTest, ACoordinatorThatStartsHasTheStepsThatWereNotWrittenYet) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  for (int64_t step = 1; step <= 3; ++step) Say(w0, StepMessage(id, step));
  Pass(40'000);  // the history is written
  Say(w0, StepMessage(id, 4));
  Settle();
  StartCoordinator();
  EXPECT_THAT(reconciler_->HistoryOf(id)->steps().step(), ElementsAre(1, 2, 3, 4));
}

TEST_F(ReconcilerTest, AnEndedJobHasItsHistoryAndItsRow) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  const std::string other = Submit(Spec("b"));
  Say(w0, StepMessage(id, 1));
  w0.SetAll(id, v1::RANK_SUCCEEDED);
  Pass(1'200);
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(JobNow(id).state(), v1::SUCCEEDED);
    EXPECT_THAT(reconciler_->HistoryOf(id)->steps().step(), ElementsAre(1));
    const v1::ListPageResponse page = *reconciler_->ListPage({}, {});
    ASSERT_EQ(page.summaries_size(), 2);
    EXPECT_EQ(page.summaries(0).id(), other) << "the newest first";
    EXPECT_EQ(page.summaries(0).ranks(), 1u);
    EXPECT_EQ(page.summaries(1).id(), id);
    EXPECT_EQ(page.summaries(1).state(), v1::SUCCEEDED);
    StartCoordinator();
  }
}

}  // namespace
}  // namespace terrace
