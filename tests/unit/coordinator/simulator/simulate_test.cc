// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/simulator/simulate_programs.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(SimulateTest, OneStreamAddsUp) {
  const Simulation simulation =
      SimulateOrDie(MakeProgram({{.seconds = 3}, {.seconds = 5, .phase = v1::OPTIMIZER_STEP}}));
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 8);
  EXPECT_DOUBLE_EQ(simulation.compute_seconds, 8);
  EXPECT_DOUBLE_EQ(simulation.optimizer_seconds, 5);
  EXPECT_DOUBLE_EQ(simulation.stages[0].instructions[1].start_seconds, 3);
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
  EXPECT_DOUBLE_EQ(simulation.exposed_communication_seconds, 9);
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

TEST(SimulateTest, CollectivesTakeWhatTheirRingsMove) {
  // 4 ranks, 1 element a second, a latency of 0.25 s; operands of 8 and 2 elements a rank.
  const auto seconds = [](v1::CollectiveKind kind, std::vector<int64_t> operands) {
    v1::Program program = MakeProgram({{.seconds = operands[0], .reduce = true}});
    program.mutable_grid()->set_data_shard(4);
    v1::Instruction* instruction = program.mutable_sequences(0)->mutable_instructions(0);
    instruction->mutable_collective()->set_kind(kind);
    for (size_t i = 1; i < operands.size(); ++i) {
      *instruction->add_operands() = instruction->operands(0);
      instruction->mutable_operands(static_cast<int>(i))->set_shape(0, operands[i]);
    }
    v1::HardwareProfile profile = OneElementASecond();
    profile.set_link_latency_seconds(0.25);
    return Simulate(program, "train", profile)->step_seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(v1::ALL_REDUCE, {8}), 2 * 3 * (2 + 0.25));
  EXPECT_DOUBLE_EQ(seconds(v1::REDUCE_SCATTER, {8, 2}), 3 * (2 + 0.25));
  EXPECT_DOUBLE_EQ(seconds(v1::ALL_GATHER, {2, 8}), 3 * (2 + 0.25));
  EXPECT_DOUBLE_EQ(seconds(v1::ALL_TO_ALL, {8, 8}), 3 * (2 + 0.25));
  EXPECT_DOUBLE_EQ(seconds(v1::RING_SHIFT, {8, 8}), 8 + 0.25);
}

TEST(SimulateTest, StreamsSayHowLongTheyAreBusy) {
  const Simulation simulation = SimulateOrDie(
      MakeProgram({{.seconds = 2}, {.seconds = 9, .reduce = true, .waits = {0}}, {.seconds = 3}}));
  EXPECT_DOUBLE_EQ(simulation.stages[0].streams[0].busy_seconds, 5);
  EXPECT_DOUBLE_EQ(simulation.stages[0].streams[1].busy_seconds, 9);
}

}  // namespace
}  // namespace terrace
