// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/reconciler.h"
#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST_F(ReconcilerTest, AJobThatRanOutGoesOnWithASmallerLayoutAndItsPrograms) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  RankOf("w0", id, 0).mutable_progress()->set_checkpoint_step(7);
  RunOut("w0", id, 0, 112);
  Pass(1200);
  v1::Job job = JobNow(id);
  EXPECT_EQ(job.state(), v1::STARTING);
  EXPECT_EQ(job.epoch(), 2);
  EXPECT_EQ(job.learned_external_bytes(), int64_t{128} << 20);
  ASSERT_EQ(job.adjustments_size(), 1);
  EXPECT_EQ(job.adjustments(0).step(), 7);
  EXPECT_EQ(job.adjustments(0).layout().micro_batch(), 2u);
  EXPECT_EQ(w0.received.back().start().ranks(0).program_sha256(), "smaller program");
  ASSERT_EQ(budgets_.size(), 1u);
  EXPECT_EQ(budgets_[0].external_bytes, int64_t{128} << 20) << "it is planned with";
  EXPECT_EQ(reconciler_->Stats().adjustments.at("micro_batch"), 1);
  EXPECT_EQ(reconciler_->Stats().restarts.at(v1::REASON_OUT_OF_MEMORY), 1);
  bool told = false;
  const auto events = store_.Events(id, 0, 100);
  for (const v1::JobEvent& event : *events) {
    told |= event.state().message().find("with a smaller micro-batch") != std::string::npos;
  }
  EXPECT_TRUE(told) << "whoever watches sees it";
}

TEST_F(ReconcilerTest, TheLadderEndsAndIsNotHeldAgainstMaxRestarts) {
  AddWorker("w0", 1);
  v1::JobSpec spec = Spec("a");
  spec.set_max_restarts(0);
  const std::string id = RunningJob(spec);
  for (int rung = 0; rung < 2; ++rung) {
    RunOut("w0", id, 0, 112 + rung);
    Pass(1200);
    Ready(id);
    ASSERT_EQ(JobNow(id).state(), v1::RUNNING) << rung;
  }
  RunOut("w0", id, 0, 200);
  Pass(1200);
  const v1::Job job = *store_.GetJob(id);
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_OUT_OF_MEMORY);
  EXPECT_THAT(job.message(), HasSubstr("held too much; nothing smaller fits"));
  EXPECT_EQ(job.adjustments_size(), 2);
}

// Whatever the moment of its death, the next coordinator goes on from what was stored.
TEST_F(ReconcilerTest, ACoordinatorThatDiesOnTheWayDownGoesOnAfterItsRestart) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  descents_lost_ = 1;
  RunOut("w0", id, 0, 112);
  Pass(1200);
  EXPECT_TRUE(NeedsSmallerLayout(*store_.GetJob(id))) << "stored before it is acted on";
  EXPECT_EQ(descents_, 1);
  StartCoordinator();
  Settle();
  EXPECT_EQ(JobNow(id).state(), v1::RECOVERING) << "its worker is away";
  Connect(w0);
  Pass(1200);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(JobNow(id).adjustments_size(), 1);
  EXPECT_EQ(descents_, 2);
  // And between the new layout and its start.
  StartCoordinator();
  Connect(w0);
  Pass(400);
  Ready(id);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).epoch(), 2);
  EXPECT_EQ(JobNow(id).plan().layout().micro_batch(), 2u);
  EXPECT_EQ(descents_, 2);
}

TEST_F(ReconcilerTest, WhenNothingCanBeStoredTheWayDownIsTriedAgain) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  RunOut("w0", id, 0, 112);
  store_.full = true;
  Pass(1200);
  EXPECT_EQ(descents_, 0) << "what is not stored is not done";
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  store_.full = false;
  Pass(1200);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(JobNow(id).adjustments_size(), 1);
}

TEST_F(ReconcilerTest, TheOldRanksEndBeforeASmallerLayoutIsSought) {
  FakeWorker& w0 = AddWorker("w0", 1);
  AddWorker("w1", 1);
  const std::string id = RunningJob(Spec("a", 1, 2));
  RunOut("w1", id, 1, 112);
  const auto report = w0.ranks.begin()->second;
  Disconnect(*workers_["w0"]);  // its rank is not heard of, nor killed
  Pass(1000);
  EXPECT_EQ(descents_, 0);
  Connect(w0);
  Pass(1200);
  EXPECT_EQ(descents_, 1);
  EXPECT_EQ(report.epoch(), 1);
}

TEST_F(ReconcilerTest, LaterJobsOfThatShapeArePlannedOnThatWorkerWithWhatWasLearned) {
  AddWorker("w0", 1);
  v1::JobSpec spec = Spec("a");
  spec.mutable_model()->set_config_json("{}");
  const std::string id = RunningJob(spec);
  RunOut("w0", id, 0, 112);
  Pass(1200);
  StartCoordinator();
  Connect(*workers_["w0"]);
  v1::JobSpec later = spec;
  later.set_name("b");
  later.mutable_train()->set_seed(17);
  EXPECT_EQ(reconciler_->BudgetNow(later)->external_bytes, int64_t{128} << 20)
      << "after a restart too";
  later.mutable_model()->set_config_json("{ }");
  EXPECT_EQ(reconciler_->BudgetNow(later)->external_bytes, 0) << "another shape";
  AddWorker("w1", 2);
  EXPECT_EQ(reconciler_->BudgetNow(Spec("c", 2))->external_bytes, 0) << "another worker";
}

TEST_F(ReconcilerTest, WhereJobsShareGpusNothingIsLearnedForLaterJobsNorForTheJob) {
  FakeWorker& w0 = AddWorker("w0", 2);
  w0.mutable_node().set_device("cuda");
  w0.mutable_node().set_device_name("NVIDIA H100 80GB HBM3");
  w0.mutable_node().set_gpus(1);
  w0.mutable_node().set_device_memory_bytes(int64_t{42} << 30);
  w0.mutable_node().mutable_profile()->set_device_memory_bytes(int64_t{85} << 30);
  Connect(w0);
  v1::JobSpec spec = Spec("a");
  spec.mutable_resources()->set_device("cuda");
  const std::string id = RunningJob(spec), other = RunningJob(spec);
  const int64_t before = reconciler_->BudgetNow(spec)->external_bytes;
  RunOut("w0", id, 0, 16'000);
  Pass(1200);
  const v1::Job job = JobNow(id);
  EXPECT_EQ(job.adjustments_size(), 1) << "it falls back all the same";
  EXPECT_EQ(job.learned_external_bytes(), 0);
  ASSERT_EQ(budgets_.size(), 1u);
  EXPECT_EQ(budgets_[0].external_bytes, before);
  EXPECT_EQ(reconciler_->BudgetNow(spec)->external_bytes, before);
  // Alone on the worker it counts itself.
  Ready(id);
  workers_["w0"]->SetAll(other, v1::RANK_SUCCEEDED);
  Pass(1200);
  RunOut("w0", id, 0, 16'000);
  Pass(1200);
  EXPECT_GT(JobNow(id).learned_external_bytes(), int64_t{16'000} << 20);
  EXPECT_GT(reconciler_->BudgetNow(spec)->external_bytes, int64_t{16'000} << 20);
}

TEST_F(ReconcilerTest, AJobCancelledOnTheWayDownStaysCancelled) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  RunOut("w0", id, 0, 112);
  auto heard = workers_["w0"]->Heartbeat();
  Say(*workers_["w0"], heard);
  reconciler_->Pass();
  ASSERT_TRUE(NeedsSmallerLayout(JobNow(id)));
  ASSERT_TRUE(reconciler_->Cancel(id, false).ok());
  Pass(1200);
  EXPECT_EQ(store_.GetJob(id)->state(), v1::CANCELLED);
}

}  // namespace
}  // namespace terrace
