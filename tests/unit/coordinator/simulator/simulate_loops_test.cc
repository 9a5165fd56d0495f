// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/report/memory_over_time.h"
#include "coordinator/simulator/simulate.h"
#include "proto/program/played_program.h"
#include "tests/unit/coordinator/simulator/simulate_programs.h"
#include "tests/unit/proto/program/loop_program.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// An element takes a second on every stream; loads take none.
v1::HardwareProfile Profile(double to_host_seconds = 1) {
  v1::HardwareProfile profile = OneElementASecond();
  profile.set_to_device_bytes_per_second(4);
  profile.set_to_host_bytes_per_second(4 / to_host_seconds);
  return profile;
}

Simulation SimulateOrFail(const v1::Program& program, const v1::HardwareProfile& profile) {
  const auto simulation = Simulate(program, "train", profile);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.value_or(Simulation{});
}

void ExpectNear(double seconds, double of_all, const char* what) {
  EXPECT_NEAR(seconds, of_all, 1e-6 * of_all + 1e-9) << what;
}

// The most bytes that are live on the device at a time.
int64_t PeakOf(const PlayedProgram& played, const Simulation& simulation) {
  return MemoryOf(played.program(), played.program().sequences(0),
                  simulation.stages[0].instructions, v1::DEVICE, simulation.played_seconds,
                  /*columns=*/1)
      .peak_bytes;
}

// Every number that a plan tells.
void ExpectSame(const Simulation& loops, const Simulation& whole) {
  ExpectNear(loops.step_seconds, whole.step_seconds, "step");
  ExpectNear(loops.compute_seconds, whole.compute_seconds, "compute");
  ExpectNear(loops.exposed_communication_seconds, whole.exposed_communication_seconds, "exposed");
  ExpectNear(loops.exposed_offload_seconds, whole.exposed_offload_seconds, "offload");
  ExpectNear(loops.optimizer_seconds, whole.optimizer_seconds, "optimizer");
  ExpectNear(loops.bubble_ratio, whole.bubble_ratio, "bubble");
  ASSERT_EQ(loops.stages.size(), whole.stages.size());
  for (size_t i = 0; i < loops.stages.size(); ++i) {
    const SimulatedStage &one = loops.stages[i], &other = whole.stages[i];
    ExpectNear(one.loading_seconds, other.loading_seconds, "loading");
    ExpectNear(one.bubble_seconds, other.bubble_seconds, "bubble of a stage");
    for (size_t k = 0; k < one.phase_seconds.size(); ++k)
      ExpectNear(one.phase_seconds[k], other.phase_seconds[k], "phase");
    for (size_t k = 0; k < one.streams.size(); ++k) {
      ExpectNear(one.streams[k].busy_seconds, other.streams[k].busy_seconds, "stream");
      ExpectNear(one.streams[k].optimizer_seconds, other.streams[k].optimizer_seconds, "stream");
    }
    // The compute stream's step is divided without remainder.
    ExpectNear(one.compute_seconds + one.exposed_communication_seconds +
                   one.exposed_offload_seconds + one.bubble_seconds + one.loading_seconds,
               loops.step_seconds, "parts");
  }
}

TEST(SimulateLoopsTest, AStepOfLoopsTakesWhatItTakesWrittenOut) {
  for (const double to_host_seconds : {0.1, 1.0, 3.0}) {  // hidden, nearly, exposed
    LoopProgram made({.micro_batches = 402});
    const PlayedProgram whole(&made.program(), 0);
    const v1::HardwareProfile profile = Profile(to_host_seconds);
    const Simulation loops = SimulateOrFail(made.program(), profile);
    ExpectSame(loops, SimulateOrFail(whole.program(), profile));
    EXPECT_GT(loops.left_out, 380);
    EXPECT_LT(loops.played_seconds, 0.1 * loops.step_seconds);
    const SimulatedStage& stage = loops.stages[0];
    const PlayedProgram played(&made.program(), loops.left_out);
    ASSERT_EQ(static_cast<int>(stage.instructions.size()),
              played.program().sequences(0).instructions_size());
    for (size_t i = 0; i < stage.played.size(); ++i) {
      EXPECT_EQ(stage.played[i].instruction, played.PlayedAt(0, i).instruction);
      EXPECT_EQ(stage.played[i].iteration, played.PlayedAt(0, i).iteration);
    }
    EXPECT_EQ(PeakOf(played, loops), PeakOf(whole, SimulateOrFail(whole.program(), profile)));
  }
}

// The host is slower by a hundredth: until its lead of two iterations is used up, a step takes what
// compute takes, and from then on what the host takes.
TEST(SimulateLoopsTest, IterationsAreOnlyMultipliedOnceTheyAreSteady) {
  LoopProgram made({.micro_batches = 1002, .tokens = 100, .x = 500, .weights = 400});
  v1::HardwareProfile profile = Profile();
  const PlayedProgram whole(&made.program(), 0);
  const double iteration = [&] {
    const Simulation hidden = SimulateOrFail(whole.program(), Profile(0.001));
    return hidden.step_seconds / 1002;
  }();
  profile = Profile(1.01 * iteration / 500);
  const Simulation all = SimulateOrFail(whole.program(), profile);
  const Simulation loops = SimulateOrFail(made.program(), profile);
  ASSERT_GT(all.step_seconds, 1.005 * 1002 * iteration);
  EXPECT_NEAR(loops.step_seconds, all.step_seconds, 1e-3 * all.step_seconds);
  EXPECT_EQ(PeakOf(PlayedProgram(&made.program(), loops.left_out), loops), PeakOf(whole, all));
}

TEST(SimulateLoopsTest, ShortLoopsArePlayedWhole) {
  LoopProgram made({.micro_batches = 7});
  const PlayedProgram whole(&made.program(), 0);
  const Simulation loops = SimulateOrFail(made.program(), Profile());
  EXPECT_EQ(loops.left_out, 0);
  ExpectSame(loops, SimulateOrFail(whole.program(), Profile()));
}

// Two stages: what the first has computed the second computes on; each has its own number of
// iterations, as warm-up and drain of a pipeline have.
v1::Program PipelineStage(uint32_t stage, uint32_t micro_batches, uint32_t before,
                          int64_t seconds) {
  v1::Program program = MakeProgram({});
  program.set_stage(stage);
  program.mutable_grid()->set_data_shard(1);
  program.mutable_grid()->set_pipeline(2);
  program.mutable_groups(0)->set_axes(0, v1::PIPELINE);
  program.mutable_streams(1)->set_kind(v1::TRANSFER);
  v1::Sequence* train = program.mutable_sequences(0);
  const auto compute = [&] {
    v1::Instruction* one = train->add_instructions();
    one->set_id(train->instructions_size() - 1);
    one->set_phase(v1::FORWARD);
    one->mutable_compute()->set_op("fill");
    one->mutable_compute()->mutable_fill();
    v1::Operand* operand = one->add_operands();
    operand->set_access(v1::WRITE);
    operand->set_dtype(v1::F32);
    operand->add_shape(seconds);
    return one;
  };
  const auto transfer = [&] {
    v1::Instruction* one = train->add_instructions();
    one->set_id(train->instructions_size() - 1);
    one->set_stream(1);
    one->mutable_transfer()->set_kind(stage == 0 ? v1::SEND : v1::RECEIVE);
    one->mutable_transfer()->set_peer_stage(1 - stage);
    v1::Operand* operand = one->add_operands();
    operand->set_access(stage == 0 ? v1::READ : v1::WRITE);
    operand->set_dtype(v1::F32);
    operand->add_shape(2);
    return one;
  };
  const auto micro_batch = [&](bool looped) {
    if (stage == 0) {
      v1::Instruction* one = compute();
      v1::Instruction* sent = transfer();
      sent->add_waits(one->id());
      // Two values may wait to be sent.
      if (!looped) return;
      v1::BackWait* back = one->add_back_waits();
      back->set_instruction(sent->id());
      back->set_iterations(2);
    } else {
      v1::Instruction* received = transfer();
      v1::Instruction* one = compute();
      one->add_waits(received->id());
      if (!looped) return;
      v1::BackWait* back = received->add_back_waits();
      back->set_instruction(one->id());
      back->set_iterations(1);
    }
  };
  for (uint32_t m = 0; m < before; ++m) micro_batch(false);
  v1::Loop* loop = train->add_loops();
  loop->set_first(train->instructions_size());
  micro_batch(true);
  loop->set_count(train->instructions_size() - loop->first());
  loop->set_trips(micro_batches - before - 1);
  loop->set_micro_batches(1);
  micro_batch(false);
  program.mutable_rules()->set_micro_batches(micro_batches);
  return program;
}

TEST(SimulateLoopsTest, StagesPlayTogetherWithTheSameIterationsLeftOut) {
  for (const int64_t second : {4, 5, 9}) {
    const std::vector<v1::Program> stages = {PipelineStage(0, 300, 3, 5),
                                             PipelineStage(1, 300, 1, second)};
    std::vector<v1::Program> whole;
    for (const v1::Program& stage : stages) {
      whole.push_back(PlayedProgram(&stage, 0).program());
      EXPECT_TRUE(whole.back().sequences(0).loops().empty());
    }
    const auto loops = Simulate(stages, "train", OneElementASecond());
    const auto all = Simulate(whole, "train", OneElementASecond());
    ASSERT_TRUE(loops.ok()) << loops.status();
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_GT(loops->left_out, 200);
    ExpectSame(*loops, *all);
    if (second == 9) {
      EXPECT_GT(all->stages[0].bubble_seconds, 300);
    }
  }
}

TEST(SimulateLoopsTest, LoopsThatDoNotFitAreRefused) {
  LoopProgram made;
  made.program().mutable_sequences(0)->mutable_loops(0)->set_trips(0);
  EXPECT_THAT(std::string(Simulate(made.program(), "train", Profile()).status().message()),
              HasSubstr("sequence 'train': its loops are not parts of it in order"));
}

}  // namespace
}  // namespace terrace
