// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kNowMs = 1'000'000;

// `used` by jobs of which nobody knows when they end.
NodeView Node(const std::string& name, uint32_t devices, const std::set<uint32_t>& used = {}) {
  NodeView node;
  node.name = name;
  node.devices = devices;
  node.threads_per_device = 2;
  for (const uint32_t device : used) node.used[device] = kUnknownMs;
  return node;
}

v1::Job Waiting(const std::string& id, uint32_t ranks, uint32_t nodes = 1, int64_t submitted = 1,
                int32_t priority = 0) {
  v1::Job job;
  job.set_id(id);
  job.set_submitted_unix_ms(submitted);
  job.mutable_spec()->set_priority(priority);
  job.mutable_plan()->mutable_layout()->set_ranks(ranks);
  job.mutable_plan()->mutable_layout()->set_nodes(nodes);
  job.mutable_plan()->mutable_layout()->set_threads_per_rank(1);
  return job;
}

struct Decision {
  std::string job;
  v1::Placement placement;  // without ranks: the job waits, for `reason`
  v1::Reason reason = v1::REASON_NONE;
  std::string message;
};

std::vector<Decision> Decide(const std::vector<v1::Job>& jobs, const std::vector<NodeView>& views) {
  std::vector<QueuedJob> queue;
  for (const v1::Job& job : jobs) queue.push_back(QueuedJobOf(job));
  std::vector<QueueNode> nodes;
  for (const NodeView& view : views) nodes.push_back(QueueNodeOf(view));
  std::vector<Decision> decisions;
  for (const QueueDecision& one : ScheduleQueue(queue, nodes, kNowMs)) {
    Decision& decision = decisions.emplace_back();
    decision.job = jobs[one.job].id();
    decision.placement = PlacementOf(one, nodes);
    if (one.waits == nullptr) continue;
    decision.reason = ReasonOf(one.waits->reasons.front().what);
    decision.message = MessageOf(*one.waits);
  }
  return decisions;
}

TEST(ScheduleTest, AGangIsPlacedNodeAfterNodeOnFreeDevices) {
  const auto decisions = Decide({Waiting("a", 4, 2)}, {Node("w0", 3, {1}), Node("w1", 2)});
  ASSERT_EQ(decisions[0].placement.ranks_size(), 4);
  const v1::Placement& placement = decisions[0].placement;
  EXPECT_EQ(placement.ranks(0).worker(), "w0");
  EXPECT_EQ(placement.ranks(0).device(), 0);
  EXPECT_EQ(placement.ranks(1).device(), 2) << "device 1 is used";
  EXPECT_EQ(placement.ranks(2).worker(), "w1");
  EXPECT_EQ(placement.ranks(3).rank(), 3);
}

TEST(ScheduleTest, PlacementIsAllOrNothing) {
  const auto decisions = Decide({Waiting("a", 4, 2)}, {Node("w0", 2), Node("w1", 2, {0})});
  EXPECT_EQ(decisions[0].placement.ranks_size(), 0);
  EXPECT_EQ(decisions[0].reason, v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_THAT(decisions[0].message, HasSubstr("needs 2 workers with 2 devices"));
  EXPECT_THAT(decisions[0].message, HasSubstr("3 of the 4 devices"));
}

TEST(ScheduleTest, AWorkerThatOthersCannotReachTakesJobsOfItsOwnOnly) {
  NodeView alone = Node("w1", 2);
  alone.problem = "worker w0 cannot reach it";
  EXPECT_EQ(Decide({Waiting("a", 2)}, {alone})[0].placement.ranks_size(), 2);
  const auto both = Decide({Waiting("a", 4, 2)}, {Node("w0", 2), alone});
  EXPECT_EQ(both[0].placement.ranks_size(), 0);
  EXPECT_THAT(both[0].message, HasSubstr("w1: worker w0 cannot reach it"));
}

TEST(ScheduleTest, AJobThatNoWorkerCouldHoldSaysWhatTheLargestOffers) {
  const auto decisions = Decide({Waiting("a", 4)}, {Node("w0", 2)});
  EXPECT_EQ(decisions[0].reason, v1::REASON_NO_MATCHING_WORKER);
  EXPECT_THAT(decisions[0].message, HasSubstr("needs 1 worker with 4 devices"));
  EXPECT_THAT(decisions[0].message, HasSubstr("w0 offers 2 devices"));
  EXPECT_THAT(Decide({Waiting("a", 1)}, {})[0].message, HasSubstr("no worker is registered"));
}

TEST(ScheduleTest, PriorityGoesBeforeAgeAndAgeBeforeName) {
  const auto decisions =
      Decide({Waiting("young", 1, 1, 30), Waiting("old", 1, 1, 10), Waiting("urgent", 1, 1, 20, 5)},
             {Node("w0", 1)});
  EXPECT_EQ(decisions[0].job, "urgent");
  EXPECT_EQ(decisions[0].placement.ranks_size(), 1);
  EXPECT_EQ(decisions[1].job, "old");
  EXPECT_THAT(decisions[2].message, HasSubstr("job old is ahead"));
}

TEST(ScheduleTest, ASmallJobDoesNotOvertakeALargeOneThatWaits) {
  const auto decisions =
      Decide({Waiting("large", 2, 1, 1), Waiting("small", 1, 1, 2)}, {Node("w0", 2, {0})});
  EXPECT_EQ(decisions[0].reason, v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_EQ(decisions[1].placement.ranks_size(), 0);
  EXPECT_THAT(decisions[1].message, HasSubstr("job large is ahead of it"));
}

TEST(ScheduleTest, AJobThatNoWorkerMatchesHoldsNobodyUp) {
  const auto decisions =
      Decide({Waiting("huge", 64, 1, 1), Waiting("small", 1, 1, 2)}, {Node("w0", 1)});
  EXPECT_EQ(decisions[0].reason, v1::REASON_NO_MATCHING_WORKER);
  EXPECT_EQ(decisions[1].placement.ranks_size(), 1);
}

TEST(ScheduleTest, TheFullestWorkerThatFitsIsTaken) {
  const auto decisions = Decide({Waiting("a", 1)}, {Node("w0", 4), Node("w1", 4, {0, 1, 2})});
  EXPECT_EQ(decisions[0].placement.ranks(0).worker(), "w1");
}

TEST(ScheduleTest, AProgramIsNotPlacedWhereItsBytesOrThreadsDoNotFit) {
  v1::Job job = Waiting("a", 1);
  v1::StageMemory* stage = job.mutable_plan()->add_memory();
  stage->set_arena_bytes(900);
  stage->set_external_bytes(200);
  NodeView small = Node("w0", 1);
  small.device_memory_bytes = 1000;
  EXPECT_EQ(Decide({job}, {small})[0].reason, v1::REASON_NO_MATCHING_WORKER);
  small.device_memory_bytes = 1100;
  EXPECT_EQ(Decide({job}, {small})[0].placement.ranks_size(), 1);
  job.mutable_plan()->mutable_layout()->set_threads_per_rank(3);
  EXPECT_EQ(Decide({job}, {small})[0].reason, v1::REASON_NO_MATCHING_WORKER);
  job.mutable_spec()->mutable_resources()->set_threads_per_device(3);
  EXPECT_EQ(Decide({job}, {small})[0].placement.ranks_size(), 1) << "the user pinned the threads";
}

TEST(ScheduleTest, ASilentWorkerIsWaitedForAndTakesNoRanks) {
  NodeView silent = Node("w0", 1);
  silent.ready = false;
  EXPECT_EQ(Decide({Waiting("a", 1)}, {silent})[0].reason, v1::REASON_WAITING_FOR_DEVICES);
}

TEST(ScheduleTest, TwoJobsNeverShareADevice) {
  const auto decisions =
      Decide({Waiting("a", 1), Waiting("b", 1), Waiting("c", 1)}, {Node("w0", 2)});
  EXPECT_EQ(decisions[0].placement.ranks(0).device(), 0);
  EXPECT_EQ(decisions[1].placement.ranks(0).device(), 1);
  EXPECT_EQ(decisions[2].reason, v1::REASON_WAITING_FOR_DEVICES);
}

TEST(ScheduleTest, AJobIsPlannedToHoldItsDevicesForItsStepsOrItsLimit) {
  v1::Job job = Waiting("a", 1);
  job.mutable_spec()->mutable_train()->set_steps(100);
  EXPECT_EQ(QueuedJobOf(job).planned_ms, kUnknownMs);
  job.mutable_plan()->mutable_time()->set_step_seconds(0.5);
  EXPECT_EQ(QueuedJobOf(job).planned_ms, 50'000);
  job.mutable_spec()->set_time_limit_seconds(30);
  job.set_held_before_seconds(10);
  EXPECT_EQ(QueuedJobOf(job).planned_ms, 20'000);
  job.set_state(v1::RUNNING);
  job.set_placed_unix_ms(kNowMs - 5000);
  EXPECT_EQ(PlannedEndMs(job, kNowMs), kNowMs + 15'000);
  job.mutable_progress()->set_step(98);
  EXPECT_EQ(PlannedEndMs(job, kNowMs), kNowMs + 1000);
}

TEST(BudgetTest, TheWeakestChosenWorkerSetsTheRates) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_nodes_min(1);
  spec.mutable_resources()->set_nodes_max(2);
  spec.mutable_resources()->set_devices_per_node(2);
  NodeView strong = Node("w0", 2);
  strong.threads_per_device = 8;
  strong.device_memory_bytes = 1000;
  NodeView weak = Node("w1", 2);
  weak.device_memory_bytes = 500;
  v1::HardwareProfile profile;
  profile.set_name("weak");
  weak.profile = std::make_shared<v1::HardwareProfile>(profile);
  const auto budget = BudgetFor(spec, {strong, weak});
  ASSERT_TRUE(budget.ok()) << budget.status();
  EXPECT_EQ(budget->nodes, 2);
  EXPECT_EQ(budget->ranks, 4);
  EXPECT_EQ(budget->threads_per_rank, 2);
  EXPECT_EQ(budget->device_memory_bytes, 500);
  EXPECT_EQ(budget->profile.name(), "weak");
}

TEST(BudgetTest, WhatTheSpecPinsWins) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_device_memory(300);
  spec.mutable_resources()->set_threads_per_device(5);
  spec.mutable_layout()->set_dp(2);
  spec.mutable_resources()->set_nodes_max(3);
  NodeView node = Node("w0", 4);
  node.device_memory_bytes = 500;
  const auto budget = BudgetFor(spec, {node, node, node});
  ASSERT_TRUE(budget.ok());
  EXPECT_EQ(budget->nodes, 2) << "dp: 2 with one device a node";
  EXPECT_EQ(budget->device_memory_bytes, 300);
  EXPECT_EQ(budget->threads_per_rank, 5);
}

// The planner then refuses it, with both numbers.
TEST(BudgetTest, ALayoutNeverTakesMoreNodesThanTheSpecAllows) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_nodes_min(1);
  spec.mutable_resources()->set_nodes_max(2);
  spec.mutable_resources()->set_devices_per_node(2);
  spec.mutable_layout()->set_dp(2);
  spec.mutable_layout()->set_tp(2);
  spec.mutable_layout()->set_pp(4);
  const auto budget = BudgetFor(spec, {Node("w0", 2), Node("w1", 2), Node("w2", 2)});
  ASSERT_TRUE(budget.ok()) << budget.status();
  EXPECT_EQ(budget->nodes, 2);
  EXPECT_EQ(budget->ranks, 4);
}

TEST(ScheduleTest, TensorParallelRanksShareANode) {
  v1::Job job = Waiting("a", 8, 2);
  job.mutable_plan()->mutable_layout()->set_tensor_parallel(2);
  job.mutable_plan()->mutable_layout()->set_pipeline_parallel(4);
  const auto decisions = Decide({job}, {Node("w0", 5, {1}), Node("w1", 4)});
  const v1::Placement& placement = decisions[0].placement;
  ASSERT_EQ(placement.ranks_size(), 8);
  for (int rank = 0; rank < 8; rank += 2) {
    EXPECT_EQ(placement.ranks(rank).worker(), placement.ranks(rank + 1).worker());
  }
}

TEST(BudgetTest, TooFewMatchingWorkersAreNamed) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_nodes_min(2);
  spec.mutable_resources()->set_devices_per_node(4);
  const auto budget = BudgetFor(spec, {Node("w0", 4), Node("w1", 2)});
  EXPECT_EQ(budget.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(budget.status().message()), HasSubstr("1 of the 2 registered matches"));
}

TEST(BudgetTest, ThereIsNoCudaWorker) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_device("cuda");
  const std::string refused(BudgetFor(spec, {Node("w0", 4)}).status().message());
  EXPECT_THAT(refused, HasSubstr("CUDA device"));
  EXPECT_THAT(refused, HasSubstr("set resources.device: cpu"));
}

NodeView GpuNode(const std::string& name, uint32_t devices) {
  NodeView node = Node(name, devices);
  node.cuda = true;
  return node;
}

TEST(BudgetTest, AutoTakesGpusWhereThereAreEnoughAndCpuTakesNone) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_devices_per_node(2);
  for (const char* device : {"", "auto", "cuda"}) {
    spec.mutable_resources()->set_device(device);
    const auto budget = BudgetFor(spec, {Node("w0", 2), GpuNode("w1", 2)});
    ASSERT_TRUE(budget.ok()) << device;
    EXPECT_EQ(budget->device, "cuda") << device;
  }
  spec.mutable_resources()->set_device("auto");
  EXPECT_EQ(BudgetFor(spec, {Node("w0", 2), GpuNode("w1", 1)})->device, "");
  spec.mutable_resources()->set_device("cpu");
  EXPECT_EQ(BudgetFor(spec, {Node("w0", 2), GpuNode("w1", 2)})->device, "");
  const std::string refused(BudgetFor(spec, {GpuNode("w1", 2)}).status().message());
  EXPECT_THAT(refused, HasSubstr("start terrace-worker with --device cpu"));
}

TEST(BudgetTest, WhereNeitherKindIsEnoughAutoNamesTheOneOfWhichThereAreMore) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_device("auto");
  spec.mutable_resources()->set_nodes_min(4);
  const auto refused = [&spec](std::vector<NodeView> nodes) {
    return std::string(BudgetFor(spec, nodes).status().message());
  };
  const std::string gpus = refused({GpuNode("w0", 1), GpuNode("w1", 1), Node("w2", 1)});
  EXPECT_THAT(gpus, HasSubstr("4 workers with 1 CUDA device each; 2 of the 3 registered match"));
  EXPECT_THAT(gpus, HasSubstr("start more workers"));
  EXPECT_EQ(gpus.find("set resources.device"), std::string::npos) << gpus;
  const std::string cpus = refused({GpuNode("w0", 1), Node("w1", 1), Node("w2", 1)});
  EXPECT_THAT(cpus, HasSubstr("4 workers with 1 device each; 2 of the 3 registered match"));
}

TEST(ScheduleTest, AJobGoesToDevicesOfTheKindItWasCompiledFor) {
  v1::Job gpu = Waiting("gpu", 1), cpu = Waiting("cpu", 1);
  gpu.mutable_plan()->mutable_layout()->set_device("cuda");
  const auto decisions = Decide({gpu, cpu}, {Node("w0", 1), GpuNode("w1", 1)});
  ASSERT_EQ(decisions.size(), 2);
  for (const Decision& decision : decisions) {
    ASSERT_EQ(decision.placement.ranks_size(), 1) << decision.message;
    EXPECT_EQ(decision.placement.ranks(0).worker(), decision.job == "gpu" ? "w1" : "w0");
  }
}

}  // namespace
}  // namespace terrace
