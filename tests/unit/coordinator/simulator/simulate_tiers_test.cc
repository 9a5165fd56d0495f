// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "coordinator/simulator/simulate.h"
#include "tests/unit/coordinator/simulator/simulate_programs.h"

namespace terrace {
namespace {

// A fill of `seconds` elements on the compute stream, a copy of them on its kind's stream, or, with
// `host`, a fill on the host.
struct TierLine {
  int64_t seconds = 0;
  v1::CopyKind kind = v1::COPY_UNSPECIFIED;
  std::vector<uint32_t> waits;
  bool host = false;
  v1::Phase phase = v1::BACKWARD;
};

v1::Program TierProgram(const std::vector<TierLine>& lines) {
  v1::Program program;
  for (const v1::StreamKind kind : {v1::COMPUTE, v1::HOST_TO_DEVICE, v1::DEVICE_TO_HOST,
                                    v1::NVME_READ, v1::NVME_WRITE, v1::HOST_COMPUTE}) {
    program.add_streams()->set_kind(kind);
  }
  v1::Sequence* sequence = program.add_sequences();
  sequence->set_name("train");
  for (const TierLine& line : lines) {
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_stream(line.host ? 5 : static_cast<uint32_t>(line.kind));
    instruction->set_phase(line.phase);
    instruction->mutable_waits()->Assign(line.waits.begin(), line.waits.end());
    const bool copy = line.kind != v1::COPY_UNSPECIFIED;
    if (copy) {
      instruction->mutable_copy()->set_kind(line.kind);
    } else {
      instruction->mutable_compute()->set_op("fill");
      instruction->mutable_compute()->mutable_fill();
    }
    for (int i = 0; i < (copy ? 2 : 1); ++i) {
      v1::Operand* operand = instruction->add_operands();
      operand->set_access(copy && i == 0 ? v1::READ : v1::WRITE);
      operand->set_dtype(v1::F32);
      operand->add_shape(line.seconds);
    }
  }
  return program;
}

// An element takes a second to the device and on it, two to the host, three and four from and to
// NVMe, half of one on the host.
v1::HardwareProfile Tiers() {
  v1::HardwareProfile profile = OneElementASecond();
  profile.set_to_device_bytes_per_second(4);
  profile.set_to_host_bytes_per_second(2);
  profile.set_nvme_read_bytes_per_second(4.0 / 3);
  profile.set_nvme_write_bytes_per_second(1);
  profile.set_host_memory_bytes_per_second(8);
  return profile;
}

Simulation SimulateTiers(const std::vector<TierLine>& lines, const v1::HardwareProfile& profile) {
  const auto simulation = Simulate(TierProgram(lines), "train", profile);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.value_or(Simulation{});
}

TEST(SimulateTiersTest, EveryTierHasItsRate) {
  const Simulation simulation = SimulateTiers({{.seconds = 8, .kind = v1::TO_DEVICE},
                                               {.seconds = 8, .kind = v1::TO_HOST},
                                               {.seconds = 8, .kind = v1::NVME_LOAD},
                                               {.seconds = 8, .kind = v1::NVME_STORE},
                                               {.seconds = 8, .host = true}},
                                              Tiers());
  const auto& streams = simulation.stages[0].streams;
  EXPECT_DOUBLE_EQ(streams[1].busy_seconds, 8);
  EXPECT_DOUBLE_EQ(streams[2].busy_seconds, 16);
  EXPECT_DOUBLE_EQ(streams[3].busy_seconds, 24);
  EXPECT_DOUBLE_EQ(streams[4].busy_seconds, 32);
  EXPECT_DOUBLE_EQ(streams[5].busy_seconds, 4);
}

TEST(SimulateTiersTest, WaitingForCopiesAndTheHostIsExposedOffload) {
  const Simulation simulation =
      SimulateTiers({{.seconds = 3, .kind = v1::TO_DEVICE},
                     {.seconds = 2, .waits = {0}},
                     {.seconds = 4, .waits = {1}, .host = true, .phase = v1::OPTIMIZER_STEP}},
                    Tiers());
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 3 + 2 + 2);
  EXPECT_DOUBLE_EQ(simulation.exposed_offload_seconds, 5);
  EXPECT_DOUBLE_EQ(simulation.stages[0].exposed_optimizer_seconds, 2);
  EXPECT_DOUBLE_EQ(simulation.exposed_communication_seconds, 0);
  EXPECT_DOUBLE_EQ(simulation.stages[0].loading_seconds, 0);
}

TEST(SimulateTiersTest, BothDirectionsAtOnceShareTheLink) {
  v1::HardwareProfile profile = Tiers();
  profile.set_copy_duplex_ratio(0.5);
  // 10 s and 4 s alone, together at half their rate: the shorter ends after 8, the other after 14.
  const std::vector<TierLine> lines = {{.seconds = 10, .kind = v1::TO_DEVICE},
                                       {.seconds = 2, .kind = v1::TO_HOST}};
  EXPECT_NEAR(SimulateTiers(lines, profile).step_seconds, 14, 0.1);
  EXPECT_NEAR(SimulateTiers(lines, profile).stages[0].streams[2].busy_seconds, 8, 0.1);
  EXPECT_DOUBLE_EQ(SimulateTiers(lines, Tiers()).step_seconds, 10);
  // One after the other they do not meet.
  EXPECT_DOUBLE_EQ(SimulateTiers({{.seconds = 10, .kind = v1::TO_DEVICE},
                                  {.seconds = 2, .kind = v1::TO_HOST, .waits = {0}}},
                                 profile)
                       .step_seconds,
                   14);
}

// ---- shared cores

// One rank whose copies and communication take cores from its two threads of computation.
v1::HardwareProfile SharedCores(uint32_t cores) {
  v1::HardwareProfile profile = Tiers();
  profile.set_shared_cores(true);
  profile.set_cores(cores);
  profile.set_threads(2);
  return profile;
}

Simulation SimulateThreads(const std::vector<TierLine>& lines, const v1::HardwareProfile& profile,
                           uint32_t threads = 2) {
  v1::Program program = TierProgram(lines);
  program.set_threads(threads);
  const auto simulation = Simulate(program, "train", profile);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.value_or(Simulation{});
}

TEST(SimulateTiersTest, ATeamWaitsForItsThreadThatSharesACoreWithACopy) {
  // That thread has half a core until the copy is over, and the other one waits for it meanwhile.
  const std::vector<TierLine> lines = {{.seconds = 10}, {.seconds = 2, .kind = v1::TO_DEVICE}};
  const double copy = SimulateTiers({{.seconds = 2, .kind = v1::TO_DEVICE}}, Tiers()).step_seconds;
  const Simulation shared = SimulateThreads(lines, SharedCores(2));
  EXPECT_DOUBLE_EQ(shared.stages[0].streams[1].busy_seconds, 2 * copy);
  EXPECT_DOUBLE_EQ(shared.step_seconds, 10 + copy);
  EXPECT_DOUBLE_EQ(shared.compute_seconds, 10 + copy);
  // However many the others are.
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(8), 8).step_seconds, 10 + copy);
  // With a core for each thread nobody waits, and so on a device that copies by itself.
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(3)).step_seconds, 10);
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, Tiers()).step_seconds, 10);
}

TEST(SimulateTiersTest, CopiesBothWaysFindACoreEach) {
  // Two seconds each, beside one thread of the team: together they cost what one of them does.
  const std::vector<TierLine> lines = {
      {.seconds = 10}, {.seconds = 2, .kind = v1::TO_DEVICE}, {.seconds = 1, .kind = v1::TO_HOST}};
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(2)).step_seconds, 10 + 2);
  // With a core for each thread nobody waits.
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(4)).step_seconds, 10);
}

TEST(SimulateTiersTest, ARankOfOneThreadWaitsForNoOther) {
  const std::vector<TierLine> lines = {{.seconds = 10}, {.seconds = 2, .kind = v1::TO_DEVICE}};
  const double copy = SimulateTiers({{.seconds = 2, .kind = v1::TO_DEVICE}}, Tiers()).step_seconds;
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(2), 1).step_seconds, 10);
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(1), 1).step_seconds, 10 + copy);
}

TEST(SimulateTiersTest, RanksThatAreMoreThanTheCoresComputeByTurns) {
  v1::Program program = MakeProgram({{.seconds = 10}});
  program.set_threads(1);
  const auto seconds = [&](uint32_t cores) {
    return Simulate(program, "train", SharedCores(cores)).value_or(Simulation{}).step_seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(2), 10);
  EXPECT_DOUBLE_EQ(seconds(1), 20);
}

TEST(SimulateTiersTest, CommunicationSlowsComputationByWhatTheProfileSays) {
  // Five seconds of a sum, stretched by nothing: computation beside it loses a quarter of them.
  v1::HardwareProfile profile = OneElementASecond();
  profile.set_communication_slowdown(0.25);
  const v1::Program program = MakeProgram({{.seconds = 5, .reduce = true}, {.seconds = 10}});
  const auto simulation = Simulate(program, "train", profile);
  ASSERT_TRUE(simulation.ok());
  EXPECT_DOUBLE_EQ(simulation->stages[0].streams[1].busy_seconds, 5);
  EXPECT_DOUBLE_EQ(simulation->step_seconds, 10 + 5 * 0.25);
}

TEST(SimulateTiersTest, WhatWaitsForAnotherStreamWakesUpFirst) {
  v1::HardwareProfile profile = Tiers();
  profile.set_wake_seconds(0.5);
  const std::vector<TierLine> lines = {
      {.seconds = 3, .kind = v1::TO_DEVICE}, {.seconds = 2, .waits = {0}}, {.seconds = 2}};
  EXPECT_DOUBLE_EQ(SimulateTiers(lines, profile).step_seconds,
                   SimulateTiers(lines, Tiers()).step_seconds + 0.5);
}

TEST(SimulateTiersTest, ATeamThatWaitedWakesUpAsWell) {
  v1::HardwareProfile profile = Tiers();
  profile.set_wake_seconds(0.5);
  profile.set_team_wake_seconds(4);
  // Of so many elements a kernel has several threads, of half as many one.
  for (const auto& [elements, wake] : {std::pair{65536, 4.5}, {32768, 0.5}}) {
    const std::vector<TierLine> lines = {{.seconds = 3, .kind = v1::TO_DEVICE},
                                         {.seconds = elements, .waits = {0}},
                                         {.seconds = elements}};
    EXPECT_DOUBLE_EQ(SimulateTiers(lines, profile).step_seconds, 3 + 2.0 * elements + wake);
  }
  // A copy has one thread.
  const std::vector<TierLine> copy = {{.seconds = 3},
                                      {.seconds = 65536, .kind = v1::TO_DEVICE, .waits = {0}}};
  EXPECT_DOUBLE_EQ(SimulateTiers(copy, profile).step_seconds, 3 + 65536 + 0.5);
}

}  // namespace
}  // namespace terrace
