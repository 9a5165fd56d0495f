// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/planner/profiles.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// 4 bytes a second everywhere: an f32 element takes a second, also over the link of two ranks.
v1::HardwareProfile OneElementASecond() {
  v1::HardwareProfile profile;
  profile.set_f32_flops_per_second(1e12);
  profile.set_bf16_flops_per_second(1e12);
  profile.set_memory_bytes_per_second(4);
  profile.set_link_bytes_per_second(4);
  return profile;
}

// Either a fill of `seconds` elements on stream 0 or an all-reduce of them on stream 1.
struct Line {
  int64_t seconds = 0;
  bool reduce = false;
  std::vector<uint32_t> waits;
  v1::Phase phase = v1::BACKWARD;
};

v1::Program MakeProgram(const std::vector<Line>& lines) {
  v1::Program program;
  program.add_streams()->set_kind(v1::COMPUTE);
  program.add_streams()->set_kind(v1::COLLECTIVE);
  program.mutable_grid()->set_data_shard(2);
  program.add_groups()->add_axes(v1::DATA_SHARD);
  v1::Sequence* sequence = program.add_sequences();
  sequence->set_name("train");
  for (const Line& line : lines) {
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_id(sequence->instructions_size() - 1);
    instruction->set_stream(line.reduce ? 1 : 0);
    instruction->set_phase(line.phase);
    instruction->mutable_waits()->Assign(line.waits.begin(), line.waits.end());
    if (line.reduce) {
      instruction->mutable_collective()->set_kind(v1::ALL_REDUCE);
    } else {
      instruction->mutable_compute()->set_op("fill");
      instruction->mutable_compute()->mutable_fill();
    }
    v1::Operand* operand = instruction->add_operands();
    operand->set_access(line.reduce ? v1::UPDATE : v1::WRITE);
    operand->set_dtype(v1::F32);
    operand->add_shape(line.seconds);
  }
  return program;
}

Simulation SimulateOrDie(const v1::Program& program) {
  const auto simulation = Simulate(program, "train", OneElementASecond());
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.value_or(Simulation{});
}

TEST(SimulateTest, OneStreamAddsUp) {
  const Simulation simulation =
      SimulateOrDie(MakeProgram({{.seconds = 3}, {.seconds = 5, .phase = v1::OPTIMIZER_STEP}}));
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 8);
  EXPECT_DOUBLE_EQ(simulation.compute_seconds, 8);
  EXPECT_DOUBLE_EQ(simulation.optimizer_seconds, 5);
  EXPECT_DOUBLE_EQ(simulation.instructions[1].start_seconds, 3);
}

TEST(SimulateTest, AReductionBesideComputeIsHidden) {
  const Simulation simulation =
      SimulateOrDie(MakeProgram({{.seconds = 2},
                                 {.seconds = 4, .reduce = true, .waits = {0}},
                                 {.seconds = 10},
                                 {.seconds = 1, .waits = {1}}}));
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 13);
  EXPECT_DOUBLE_EQ(simulation.exposed_communication_seconds, 0);
}

TEST(SimulateTest, WhatComputeWaitsForIsExposed) {
  const Simulation simulation =
      SimulateOrDie(MakeProgram({{.seconds = 2},
                                 {.seconds = 9, .reduce = true, .waits = {0}},
                                 {.seconds = 3},
                                 {.seconds = 1, .waits = {1}}}));
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 12);
  EXPECT_DOUBLE_EQ(simulation.exposed_communication_seconds, 6);
  EXPECT_DOUBLE_EQ(simulation.compute_seconds, 6);
}

TEST(SimulateTest, TheStepEndsWithItsLastStream) {
  const Simulation simulation =
      SimulateOrDie(MakeProgram({{.seconds = 2}, {.seconds = 9, .reduce = true, .waits = {0}}}));
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 11);
}

TEST(SimulateTest, EachInstructionCostsItsOverhead) {
  v1::HardwareProfile profile = OneElementASecond();
  profile.set_instruction_overhead_seconds(0.5);
  profile.set_link_latency_seconds(0.25);
  const auto simulation =
      Simulate(MakeProgram({{.seconds = 2}, {.seconds = 4, .reduce = true, .waits = {0}}}), "train",
               profile);
  ASSERT_TRUE(simulation.ok());
  EXPECT_DOUBLE_EQ(simulation->step_seconds, 2.5 + 4 + 2 * 0.25 + 0.5);
}

TEST(SimulateTest, UnknownSequencesAndOpsAreRefused) {
  v1::Program program = MakeProgram({{.seconds = 1}});
  EXPECT_THAT(std::string(Simulate(program, "sleep", {}).status().message()), HasSubstr("'sleep'"));
  program.mutable_sequences(0)->mutable_instructions(0)->mutable_compute()->set_op("nap");
  EXPECT_THAT(std::string(Simulate(program, "train", {}).status().message()),
              HasSubstr("instruction 0"));
}

TEST(SimulateTest, MoreRanksAndLongerStepsTakeLonger) {
  const v1::HardwareProfile profile = CpuProfile(2);
  const auto seconds = [&](const TinyJob& job) {
    return Simulate(CompileTiny(job), "train", profile)->step_seconds;
  };
  EXPECT_LT(seconds({.micro_batches = 1}), seconds({.micro_batches = 3}));
  EXPECT_LT(seconds({.data_parallel = 1, .micro_batches = 2}),
            seconds({.data_parallel = 2, .micro_batches = 2}));
}

}  // namespace
}  // namespace terrace
