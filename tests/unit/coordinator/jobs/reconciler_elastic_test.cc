// Jobs with `resources.nodes: MIN:MAX`, which go on with the workers that there are.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kLostMs = 4'000;  // until a silent worker is given up
constexpr int64_t kYoungMs = 20'000;
constexpr int64_t kGrowMs = 70'000;  // until a job may have more

class ReconcilerElasticTest : public ReconcilerTest {
 protected:
  static v1::JobSpec Elastic(uint32_t least, uint32_t most) {
    v1::JobSpec spec = Spec("elastic", /*devices=*/1, least);
    spec.mutable_resources()->set_nodes_max(most);
    spec.mutable_train()->set_steps(100'000);
    return spec;
  }
  void TrainTo(const std::string& job, int64_t step) {
    Ready(job);
    for (auto& [name, worker] : workers_) {
      const auto rank = worker->ranks.find({job, 0});
      if (rank == worker->ranks.end()) continue;
      rank->second.set_state(v1::RANK_RUNNING);
      v1::Progress* progress = rank->second.mutable_progress();
      progress->set_step(step);
      progress->set_step_seconds(1);
      progress->set_checkpoint_step(step);
      progress->set_checkpoint("step");
    }
    Pass(1'000);
    ASSERT_EQ(JobNow(job).state(), v1::RUNNING);
    ASSERT_EQ(JobNow(job).progress().step(), step);
  }
  // Soon after the coordinator's start workers may be about to come back, and nothing follows.
  void Lose(const std::string& worker) {
    Pass(kYoungMs);
    Disconnect(*workers_[worker]);
    Pass(kLostMs);
  }
  uint32_t NodesOf(const std::string& job) { return JobNow(job).plan().layout().nodes(); }
};

TEST_F(ReconcilerElasticTest, ItGoesOnWithTheWorkersThatAreLeft) {
  for (const char* name : {"w0", "w1", "w2"}) AddWorker(name, 1);
  const std::string id = RunningJob(Elastic(1, 3));
  EXPECT_EQ(NodesOf(id), 3);
  TrainTo(id, 10);
  Lose("w1");
  EXPECT_EQ(NodesOf(id), 2);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  TrainTo(id, 20);
  const v1::Job job = JobNow(id);
  EXPECT_EQ(job.restarts(), 1);
  ASSERT_EQ(job.adjustments_size(), 1);
  EXPECT_EQ(job.adjustments(0).change(), "2 workers with 2 ranks instead of 3 with 3");
  EXPECT_EQ(job.adjustments(0).step(), 10);
  EXPECT_EQ(job.adjustments(0).layout().nodes(), 2);
}

TEST_F(ReconcilerElasticTest, ItWaitsWhereFewerThanItAsksForAreLeft) {
  for (const char* name : {"w0", "w1", "w2"}) AddWorker(name, 1);
  const std::string id = RunningJob(Elastic(2, 3));
  TrainTo(id, 10);
  Lose("w1");
  TrainTo(id, 20);
  Lose("w2");
  EXPECT_EQ(JobNow(id).state(), v1::RECOVERING);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_NO_MATCHING_WORKER);
  Connect(*workers_["w2"]);
  Pass(1'000);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(NodesOf(id), 2);
}

TEST_F(ReconcilerElasticTest, ItKeepsItsPlanWhereNothingFitsOnFewer) {
  AddWorker("w0", 1);
  AddWorker("w1", 1);
  const std::string id = RunningJob(Elastic(1, 2));
  TrainTo(id, 10);
  plan_failures_.assign(1, absl::ResourceExhaustedError("too large for one"));
  Lose("w1");
  Pass(10'000);
  EXPECT_EQ(JobNow(id).state(), v1::QUEUED) << "it has not failed";
  EXPECT_EQ(NodesOf(id), 2);
  EXPECT_EQ(JobNow(id).adjustments_size(), 0);
  Connect(*workers_["w1"]);
  Pass(1'000);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
}

TEST_F(ReconcilerElasticTest, ItStartsOnThoseThatAreFreeInsteadOfWaitingForLong) {
  AddWorker("w0", 1);
  AddWorker("w1", 1);
  v1::JobSpec other = Spec("other");
  other.mutable_train()->set_steps(100'000);
  RunningJob(other);
  const std::string id = Submit(Elastic(1, 2));
  Pass(2'000);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(NodesOf(id), 1);
  EXPECT_EQ(JobNow(id).adjustments_size(), 0) << "it had not begun";
}

TEST_F(ReconcilerElasticTest, ItKeepsItsPlaceInTheQueueWhileItIsPlannedForFewer) {
  for (const char* name : {"w0", "w1"}) AddWorker(name, 1);
  v1::JobSpec other = Spec("other");
  other.mutable_train()->set_steps(100'000);
  RunningJob(other);
  const std::string id = Submit(Elastic(1, 2));
  const std::string behind = Submit(other);
  Pass(2'000);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(JobNow(behind).state(), v1::QUEUED);
}

TEST_F(ReconcilerElasticTest, ItDoesNotWaitForOneThatIsAlwaysFreeSoon) {
  for (const char* name : {"w0", "w1"}) AddWorker(name, 1);
  v1::JobSpec other = Spec("other");
  other.mutable_train()->set_steps(10);  // of a second each; it takes longer
  RunningJob(other);
  const std::string id = Submit(Elastic(1, 2));
  Pass(50'000);
  EXPECT_EQ(JobNow(id).state(), v1::QUEUED);
  Pass(30'000);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(NodesOf(id), 1);
}

TEST_F(ReconcilerElasticTest, ItWaitsForOneThatIsFreeSoon) {
  AddWorker("w0", 1);
  AddWorker("w1", 1);
  v1::JobSpec other = Spec("other");
  other.mutable_train()->set_steps(30);  // of a second each
  RunningJob(other);
  const std::string id = Submit(Elastic(1, 2));
  Pass(2'000);
  EXPECT_EQ(JobNow(id).state(), v1::QUEUED);
  EXPECT_EQ(NodesOf(id), 2);
}

TEST_F(ReconcilerElasticTest, ItGetsMoreWorkersAfterACheckpoint) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Elastic(1, 2));
  TrainTo(id, 10);
  EXPECT_EQ(NodesOf(id), 1);
  AddWorker("w1", 1);
  Pass(10'000);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING) << "not so soon after its start";
  workers_["w0"]->deaf = true;
  Pass(kGrowMs);
  EXPECT_EQ(JobNow(id).message(), "stops after a checkpoint to go on with more workers");
  workers_["w0"]->deaf = false;
  Pass(3'000);
  EXPECT_EQ(NodesOf(id), 2);
  TrainTo(id, 30);
  EXPECT_EQ(JobNow(id).restarts(), 0);
  EXPECT_EQ(JobNow(id).preemptions(), 0);
  EXPECT_EQ(JobNow(id).adjustments(0).change(), "2 workers with 2 ranks instead of 1 with 1");
  EXPECT_EQ(JobNow(id).preempted_by(), "");
  EXPECT_EQ(JobNow(id).resumed_unix_ms(), 0) << "it has not waited anew";
}

TEST_F(ReconcilerElasticTest, ItGoesOnAsItWasWhereTheCoordinatorEndsMeanwhile) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Elastic(1, 2));
  TrainTo(id, 10);
  AddWorker("w1", 1);
  workers_["w0"]->deaf = true;
  Pass(kGrowMs);
  EXPECT_EQ(JobNow(id).preempted_by(), id);
  StartCoordinator();
  for (auto& [name, worker] : workers_) Connect(*worker);
  workers_["w0"]->deaf = false;
  Pass(3'000);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(NodesOf(id), 1);
  TrainTo(id, 30);
  EXPECT_EQ(JobNow(id).adjustments_size(), 0);
  Pass(kGrowMs);
  EXPECT_EQ(NodesOf(id), 2) << "and gets them later";
}

// A job that trains is not stopped for a plan that does not exist, or is no better.
TEST_F(ReconcilerElasticTest, ItTrainsOnWhereTheLargerPlanIsRefused) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Elastic(1, 3));
  TrainTo(id, 10);
  AddWorker("w1", 1);
  plan_failures_.assign(1, absl::InvalidArgumentError("no multiple"));
  Pass(2 * kGrowMs);
  EXPECT_TRUE(plan_failures_.empty());
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(NodesOf(id), 1);
  AddWorker("w2", 1);
  Pass(kGrowMs);
  EXPECT_EQ(NodesOf(id), 3) << "which is another number";
}

TEST_F(ReconcilerElasticTest, OneJobGrowsAtATime) {
  std::vector<std::string> ids;
  for (const char* worker : {"w0", "w1"}) {
    AddWorker(worker, 1);
    ids.push_back(Submit(Elastic(1, 2)));
    Pass(2'000);
    TrainTo(ids.back(), 10);
    EXPECT_EQ(NodesOf(ids.back()), 1);
  }
  for (auto& [name, worker] : workers_) worker->deaf = true;
  AddWorker("w2", 1);
  Pass(2 * kGrowMs);
  const int stop =
      (JobNow(ids[0]).preempted_by() == ids[0]) + (JobNow(ids[1]).preempted_by() == ids[1]);
  EXPECT_EQ(stop, 1);
}

TEST_F(ReconcilerElasticTest, ItKeepsItsPlaceInASweep) {
  AddWorker("w0", 1);
  v1::ArrayMember member;
  member.set_size(2);
  member.set_running_max(1);
  const auto submit = [&](const v1::ArrayMember& of) {
    const v1::JobSpec spec = Elastic(1, 2);
    const auto job =
        reconciler_->Submit(spec, PrepareFake(spec, *reconciler_->BudgetNow(spec)), {.member = of});
    EXPECT_TRUE(job.ok()) << job.status();
    Settle();
    return job->id();
  };
  const std::string first = submit(member);
  TrainTo(first, 10);
  member.set_array(first);
  member.set_index(1);
  const std::string second = submit(member);
  AddWorker("w1", 1);
  Pass(2 * kGrowMs);
  EXPECT_EQ(JobNow(first).state(), v1::RUNNING) << "its sibling would take its place";
  EXPECT_EQ(JobNow(second).epoch(), 0);
}

TEST_F(ReconcilerElasticTest, ItTakesNothingThatOthersWaitForAndNothingThatDoesNotPay) {
  AddWorker("w0", 1);
  v1::JobSpec short_job = Elastic(1, 2);
  short_job.mutable_train()->set_steps(40);
  const std::string ends = RunningJob(short_job);
  TrainTo(ends, 10);
  AddWorker("w1", 1);
  Pass(kGrowMs);
  EXPECT_EQ(JobNow(ends).state(), v1::RUNNING) << "30 seconds are left";
  ASSERT_TRUE(reconciler_->Cancel(ends, true).ok());
  Lose("w1");

  const std::string id = RunningJob(Elastic(1, 2));
  TrainTo(id, 10);
  const std::string large = Submit(Spec("large", 2));  // two devices of one worker
  Connect(*workers_["w1"]);
  const std::string waiting = Submit(Spec("waiting", 1, 2));
  Pass(kGrowMs);
  EXPECT_EQ(JobNow(waiting).state(), v1::QUEUED);
  EXPECT_EQ(NodesOf(id), 1);
  ASSERT_TRUE(reconciler_->Cancel(waiting, true).ok());
  Pass(3'000);
  EXPECT_EQ(JobNow(large).reason(), v1::REASON_NO_MATCHING_WORKER);
  EXPECT_EQ(NodesOf(id), 2) << "nobody else could use it";
}

TEST_F(ReconcilerElasticTest, APinnedDegreeIsKept) {
  AddWorker("w0", 1);
  AddWorker("w1", 1);
  v1::JobSpec spec = Elastic(1, 2);
  spec.mutable_layout()->set_dp(2);
  const std::string id = RunningJob(spec);
  TrainTo(id, 10);
  Lose("w1");
  Pass(10'000);
  EXPECT_EQ(NodesOf(id), 2);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_NO_MATCHING_WORKER);
}

}  // namespace
}  // namespace terrace
