// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/compiler/pipeline/schedule.h"
#include "coordinator/simulator/simulate.h"
#include "tests/unit/coordinator/simulator/simulate_programs.h"

namespace terrace {
namespace {

using compiler::IdealCosts;
using compiler::MakeSchedule;
using compiler::Pass;
using compiler::PassKind;
using compiler::ScheduleShape;
using testing::HasSubstr;

// One stage of a schedule as a program: a pass is a fill that takes its cost, receives are posted
// one pass early, sends retire as the schedule says, each direction, kind and peer has its own
// stream.
class StageProgram {
 public:
  StageProgram(const ScheduleShape& shape, int stage, const std::vector<Pass>& passes,
               const IdealCosts& costs)
      : shape_(shape),
        stage_(stage),
        passes_(passes),
        costs_(costs),
        received_(passes.size(), -1),
        computed_(passes.size(), -1),
        sent_(passes.size(), -1) {
    program_.set_stage(stage);
    program_.mutable_grid()->set_pipeline(shape.stages);
    program_.add_streams()->set_kind(v1::COMPUTE);
    for (const char* name : {"pipeline_forward", "pipeline_backward"}) {
      program_.add_groups()->set_name(name);
      program_.mutable_groups(program_.groups_size() - 1)->add_axes(v1::PIPELINE);
    }
    sequence_ = program_.add_sequences();
    sequence_->set_name("train");
  }

  v1::Program Make() && {
    const std::vector<int> retire = SendsRetire(shape_, stage_, passes_);
    if (!passes_.empty()) Receive(0);
    for (int i = 0; i < static_cast<int>(passes_.size()); ++i) {
      if (i + 1 < static_cast<int>(passes_.size())) Receive(i + 1);
      std::vector<int> waits = {received_[i]};
      for (int before = 0; before < i; ++before) {
        if (retire[before] == i) waits.push_back(sent_[before]);
      }
      computed_[i] = Compute(Seconds(passes_[i].kind), waits);
      const auto to = ConsumerOf(shape_, stage_, passes_[i]);
      if (to && to->stage != stage_) sent_[i] = Transfer(v1::SEND, i, to->stage, computed_[i]);
    }
    return std::move(program_);
  }

 private:
  void Receive(int i) {
    const auto from = ProducerOf(shape_, stage_, passes_[i]);
    if (!from || from->stage == stage_) return;
    received_[i] = Transfer(v1::RECEIVE, i, from->stage, i < 2 ? -1 : computed_[i - 2]);
  }

  int Compute(double seconds, const std::vector<int>& waits) {
    v1::Instruction* instruction = Add(0, waits);
    instruction->mutable_compute()->set_op("fill");
    instruction->mutable_compute()->mutable_fill();
    SetOperand(v1::WRITE, static_cast<int64_t>(seconds), instruction);
    return static_cast<int>(instruction->id());
  }

  int Transfer(v1::TransferKind kind, int pass, int peer, int wait) {
    const int group = passes_[pass].kind == PassKind::kForward ? 0 : 1;
    const auto [stream, is_new] =
        streams_.try_emplace({group, kind, peer}, program_.streams_size());
    if (is_new) program_.add_streams()->set_kind(v1::TRANSFER);
    v1::Instruction* instruction = Add(stream->second, {wait});
    instruction->mutable_transfer()->set_kind(kind);
    instruction->mutable_transfer()->set_group(group);
    instruction->mutable_transfer()->set_peer_stage(peer);
    SetOperand(kind == v1::SEND ? v1::READ : v1::WRITE, 1, instruction);
    return static_cast<int>(instruction->id());
  }

  v1::Instruction* Add(int stream, const std::vector<int>& waits) {
    v1::Instruction* instruction = sequence_->add_instructions();
    instruction->set_id(sequence_->instructions_size() - 1);
    instruction->set_stream(stream);
    for (int wait : waits) {
      if (wait >= 0) instruction->add_waits(wait);
    }
    return instruction;
  }

  static void SetOperand(v1::Access access, int64_t elements, v1::Instruction* instruction) {
    v1::Operand* operand = instruction->add_operands();
    operand->set_access(access);
    operand->set_dtype(v1::F32);
    operand->add_shape(elements);
  }

  double Seconds(PassKind kind) const {
    if (kind == PassKind::kForward) return costs_.forward;
    if (kind == PassKind::kBackwardInput) return costs_.backward_input;
    if (kind == PassKind::kBackwardWeight) return costs_.backward_weight;
    return costs_.backward_input + costs_.backward_weight;
  }

  const ScheduleShape& shape_;
  const int stage_;
  const std::vector<Pass>& passes_;
  const IdealCosts& costs_;
  std::vector<int> received_, computed_, sent_;  // by pass: the instruction; -1: none
  std::map<std::tuple<int, int, int>, int> streams_;
  v1::Program program_;
  v1::Sequence* sequence_ = nullptr;
};

std::vector<v1::Program> MakePipeline(const ScheduleShape& shape, const IdealCosts& costs) {
  const auto schedule = MakeSchedule(shape);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  std::vector<v1::Program> programs;
  for (int stage = 0; stage < shape.stages; ++stage) {
    programs.push_back(StageProgram(shape, stage, schedule->at(stage), costs).Make());
  }
  return programs;
}

// A transfer takes `transfer_seconds`.
Simulation SimulatePipeline(const ScheduleShape& shape, double transfer_seconds) {
  v1::HardwareProfile profile = OneElementASecond();
  profile.set_link_bytes_per_second(transfer_seconds > 0 ? 4 / transfer_seconds : 0);
  const auto simulation = Simulate(MakePipeline(shape, {}), "train", profile);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.value_or(Simulation{});
}

TEST(SimulatePipelineTest, BubblesOfPipelinesAreThePublishedOnes) {
  for (int p : {1, 2, 4, 7}) {
    const int m = 4 * p;
    const double both_ways = double(p - 1) / m;
    SCOPED_TRACE(p);
    for (const auto& [shape, bubble] :
         std::vector<std::pair<ScheduleShape, double>>{{{"gpipe", p, 1, m}, both_ways},
                                                       {{"1f1b", p, 1, m}, both_ways},
                                                       {{"interleaved", p, 3, m}, both_ways / 3},
                                                       {{"zb-h1", p, 1, m}, both_ways / 3},
                                                       {{"zbv", p, 2, m}, both_ways / 6}}) {
      SCOPED_TRACE(shape.name);
      const Simulation simulation = SimulatePipeline(shape, 0);
      ASSERT_EQ(simulation.stages.size(), static_cast<size_t>(p));
      EXPECT_NEAR(simulation.bubble_ratio, bubble, 1e-6);
      EXPECT_EQ(simulation.exposed_communication_seconds, 0);
      for (const SimulatedStage& stage : simulation.stages) {
        EXPECT_NEAR(stage.bubble_ratio, bubble, 1e-6);
        EXPECT_NEAR(stage.compute_seconds, 3 * shape.chunks * m, 1e-6);
      }
    }
  }
}

TEST(SimulatePipelineTest, AStepIsComputeAndWhatItWaitsFor) {
  for (const ScheduleShape& shape :
       {ScheduleShape{"gpipe", 4, 1, 6}, ScheduleShape{"1f1b", 4, 1, 6},
        ScheduleShape{"interleaved", 4, 2, 8}, ScheduleShape{"zbv", 4, 2, 9}}) {
    SCOPED_TRACE(shape.name);
    const Simulation simulation = SimulatePipeline(shape, 0.5);
    for (const SimulatedStage& stage : simulation.stages) {
      EXPECT_NEAR(stage.compute_seconds + stage.bubble_seconds +
                      stage.exposed_communication_seconds + stage.loading_seconds,
                  simulation.step_seconds, 1e-6);
      EXPECT_GT(stage.exposed_communication_seconds, 0);
    }
  }
}

// Stage 0: 2 s, send; stage 1: waits, 3 s, sends back; stage 0: 1 s. A message takes 0.5 s.
TEST(SimulatePipelineTest, WaitingForAMessageIsBubbleUntilItMoves) {
  const Simulation simulation = SimulatePipeline({"1f1b", 2, 1, 1}, 0.5);
  const SimulatedStage& first = simulation.stages[0];
  EXPECT_NEAR(simulation.step_seconds, 1 + 0.5 + 1 + 2 + 0.5 + 2, 1e-6);
  EXPECT_NEAR(first.bubble_seconds, 3, 1e-6);
  EXPECT_NEAR(first.exposed_communication_seconds, 1, 1e-6);
  EXPECT_NEAR(simulation.stages[1].bubble_seconds, 1 + 2, 1e-6);  // at the start and at the end
}

TEST(SimulatePipelineTest, AMessageLeavesWhenItsReceiverIsReady) {
  std::vector<v1::Program> programs = MakePipeline({"1f1b", 2, 1, 1}, {});
  // The receiver posts its receive only after 7 s of something else.
  v1::Sequence* late = programs[1].mutable_sequences(0);
  v1::Instruction busy = programs[0].sequences(0).instructions(1);
  ASSERT_TRUE(busy.has_compute());
  busy.clear_waits();
  busy.mutable_operands(0)->set_shape(0, 7);
  ASSERT_TRUE(late->instructions(0).has_transfer());
  v1::Sequence shifted;
  shifted.set_name("train");
  *shifted.add_instructions() = busy;
  for (v1::Instruction instruction : late->instructions()) {
    instruction.set_id(instruction.id() + 1);
    for (uint32_t& wait : *instruction.mutable_waits()) ++wait;
    if (instruction.id() == 1) instruction.add_waits(0);
    *shifted.add_instructions() = instruction;
  }
  *late = shifted;
  const auto simulation = Simulate(programs, "train", OneElementASecond());
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  for (const RunInstruction& run : {simulation->stages[0].instructions[2],     // the send
                                    simulation->stages[1].instructions[1]}) {  // the receive
    EXPECT_DOUBLE_EQ(run.start_seconds, 7);
    EXPECT_DOUBLE_EQ(run.end_seconds, 8);
  }
}

TEST(SimulatePipelineTest, CollectivesOverThePipelineStartTogether) {
  std::vector<v1::Program> programs;
  for (int stage : {0, 1}) {
    v1::Program& program = programs.emplace_back(MakeProgram(
        {{.seconds = stage == 0 ? 2 : 5}, {.seconds = 4, .reduce = true, .waits = {0}}}));
    program.set_stage(stage);
    program.mutable_grid()->Clear();
    program.mutable_grid()->set_pipeline(2);
    program.mutable_groups(0)->set_axes(0, v1::PIPELINE);
  }
  const auto simulation = Simulate(programs, "train", OneElementASecond());
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_DOUBLE_EQ(simulation->stages[0].instructions[1].start_seconds, 5);
  EXPECT_DOUBLE_EQ(simulation->step_seconds, 9);
  EXPECT_DOUBLE_EQ(simulation->stages[0].bubble_seconds, 3);
  EXPECT_DOUBLE_EQ(simulation->stages[0].exposed_communication_seconds, 4);
  EXPECT_DOUBLE_EQ(simulation->stages[1].bubble_seconds, 0);
}

TEST(SimulatePipelineTest, AStageAloneNeverWaitsForOthers) {
  const std::vector<v1::Program> programs = MakePipeline({"1f1b", 4, 1, 8}, {});
  v1::HardwareProfile profile = OneElementASecond();
  profile.set_link_bytes_per_second(0);
  const auto simulation = Simulate(programs[1], "train", profile);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_NEAR(simulation->step_seconds, 3 * 8, 1e-6);
  EXPECT_EQ(simulation->bubble_ratio, 0);
}

TEST(SimulatePipelineTest, StagesThatWaitForEachOtherAreRefused) {
  std::vector<v1::Program> programs = MakePipeline({"1f1b", 2, 1, 2}, {});
  programs[1].mutable_sequences(0)->clear_instructions();
  const auto status = Simulate(programs, "train", OneElementASecond()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("stage 0 at instruction"));
  programs[1].set_stage(0);
  EXPECT_THAT(std::string(Simulate(programs, "train", {}).status().message()),
              HasSubstr("stage 0 is given twice"));
}

TEST(SimulatePipelineTest, SixteenStagesOfTenThousandInstructionsTakeLessThanASecond) {
  // A pass is one compute instruction and up to two transfers: 3,400 micro-batches make 10^4.
  const std::vector<v1::Program> programs = MakePipeline({"1f1b", 16, 1, 1700}, {});
  ASSERT_GT(programs[1].sequences(0).instructions_size(), 10000);
  const std::clock_t begin = std::clock();
  const auto simulation = Simulate(programs, "train", OneElementASecond());
  const double seconds = double(std::clock() - begin) / CLOCKS_PER_SEC;
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  RecordProperty("cpu_seconds", std::to_string(seconds));
  EXPECT_LT(seconds, 1.0);
}

}  // namespace
}  // namespace terrace
