// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/compiler/schedule.h"

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

// ---- copies between tiers

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

TEST(SimulateTest, EveryTierHasItsRate) {
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

TEST(SimulateTest, WaitingForCopiesAndTheHostIsExposedOffload) {
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

TEST(SimulateTest, BothDirectionsAtOnceShareTheLink) {
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

TEST(SimulateTest, ATeamWaitsForItsThreadThatSharesACoreWithACopy) {
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

TEST(SimulateTest, CopiesBothWaysFindACoreEach) {
  // Two seconds each, beside one thread of the team: together they cost what one of them does.
  const std::vector<TierLine> lines = {
      {.seconds = 10}, {.seconds = 2, .kind = v1::TO_DEVICE}, {.seconds = 1, .kind = v1::TO_HOST}};
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(2)).step_seconds, 10 + 2);
  // With a core for each thread nobody waits.
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(4)).step_seconds, 10);
}

TEST(SimulateTest, ARankOfOneThreadWaitsForNoOther) {
  const std::vector<TierLine> lines = {{.seconds = 10}, {.seconds = 2, .kind = v1::TO_DEVICE}};
  const double copy = SimulateTiers({{.seconds = 2, .kind = v1::TO_DEVICE}}, Tiers()).step_seconds;
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(2), 1).step_seconds, 10);
  EXPECT_DOUBLE_EQ(SimulateThreads(lines, SharedCores(1), 1).step_seconds, 10 + copy);
}

TEST(SimulateTest, RanksThatAreMoreThanTheCoresComputeByTurns) {
  v1::Program program = MakeProgram({{.seconds = 10}});
  program.set_threads(1);
  const auto seconds = [&](uint32_t cores) {
    return Simulate(program, "train", SharedCores(cores)).value_or(Simulation{}).step_seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(2), 10);
  EXPECT_DOUBLE_EQ(seconds(1), 20);
}

TEST(SimulateTest, CommunicationSlowsComputationByWhatTheProfileSays) {
  // Five seconds of a sum, stretched by nothing: computation beside it loses a quarter of them.
  v1::HardwareProfile profile = OneElementASecond();
  profile.set_communication_slowdown(0.25);
  const v1::Program program = MakeProgram({{.seconds = 5, .reduce = true}, {.seconds = 10}});
  const auto simulation = Simulate(program, "train", profile);
  ASSERT_TRUE(simulation.ok());
  EXPECT_DOUBLE_EQ(simulation->stages[0].streams[1].busy_seconds, 5);
  EXPECT_DOUBLE_EQ(simulation->step_seconds, 10 + 5 * 0.25);
}

TEST(SimulateTest, WhatWaitsForAnotherStreamWakesUpFirst) {
  v1::HardwareProfile profile = Tiers();
  profile.set_wake_seconds(0.5);
  const std::vector<TierLine> lines = {
      {.seconds = 3, .kind = v1::TO_DEVICE}, {.seconds = 2, .waits = {0}}, {.seconds = 2}};
  EXPECT_DOUBLE_EQ(SimulateTiers(lines, profile).step_seconds,
                   SimulateTiers(lines, Tiers()).step_seconds + 0.5);
}

TEST(SimulateTest, ATeamThatWaitedWakesUpAsWell) {
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

// ---- pipelines
// ------------------------------------------------------------------------------------

using compiler::IdealCosts;
using compiler::MakeSchedule;
using compiler::Pass;
using compiler::PassKind;
using compiler::ScheduleShape;

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

TEST(SimulateTest, BubblesOfPipelinesAreThePublishedOnes) {
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

TEST(SimulateTest, AStepIsComputeAndWhatItWaitsFor) {
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
TEST(SimulateTest, WaitingForAMessageIsBubbleUntilItMoves) {
  const Simulation simulation = SimulatePipeline({"1f1b", 2, 1, 1}, 0.5);
  const SimulatedStage& first = simulation.stages[0];
  EXPECT_NEAR(simulation.step_seconds, 1 + 0.5 + 1 + 2 + 0.5 + 2, 1e-6);
  EXPECT_NEAR(first.bubble_seconds, 3, 1e-6);
  EXPECT_NEAR(first.exposed_communication_seconds, 1, 1e-6);
  EXPECT_NEAR(simulation.stages[1].bubble_seconds, 1 + 2, 1e-6);  // at the start and at the end
}

TEST(SimulateTest, AMessageLeavesWhenItsReceiverIsReady) {
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

TEST(SimulateTest, CollectivesOverThePipelineStartTogether) {
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

TEST(SimulateTest, AStageAloneNeverWaitsForOthers) {
  const std::vector<v1::Program> programs = MakePipeline({"1f1b", 4, 1, 8}, {});
  v1::HardwareProfile profile = OneElementASecond();
  profile.set_link_bytes_per_second(0);
  const auto simulation = Simulate(programs[1], "train", profile);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_NEAR(simulation->step_seconds, 3 * 8, 1e-6);
  EXPECT_EQ(simulation->bubble_ratio, 0);
}

TEST(SimulateTest, StagesThatWaitForEachOtherAreRefused) {
  std::vector<v1::Program> programs = MakePipeline({"1f1b", 2, 1, 2}, {});
  programs[1].mutable_sequences(0)->clear_instructions();
  const auto status = Simulate(programs, "train", OneElementASecond()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("stage 0 at instruction"));
  programs[1].set_stage(0);
  EXPECT_THAT(std::string(Simulate(programs, "train", {}).status().message()),
              HasSubstr("stage 0 is given twice"));
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

// ---- streams and memory
// ---------------------------------------------------------------------------

TEST(SimulateTest, StreamsSayHowLongTheyAreBusy) {
  const Simulation simulation = SimulateOrDie(
      MakeProgram({{.seconds = 2}, {.seconds = 9, .reduce = true, .waits = {0}}, {.seconds = 3}}));
  EXPECT_DOUBLE_EQ(simulation.stages[0].streams[0].busy_seconds, 5);
  EXPECT_DOUBLE_EQ(simulation.stages[0].streams[1].busy_seconds, 9);
}

void AddBuffer(int64_t bytes, v1::Lifetime lifetime, v1::Program* program) {
  v1::Buffer* buffer = program->add_buffers();
  buffer->set_bytes(bytes);
  buffer->set_lifetime(lifetime);
}

TEST(SimulateTest, MemoryIsWhatIsLiveAtATime) {
  // Buffer 0 always; 1 in [0, 5), handed over to 2 in [5, 14); 3 never; 4 on the host.
  v1::Program program =
      MakeProgram({{.seconds = 2}, {.seconds = 3}, {.seconds = 4}, {.seconds = 5}});
  program.add_arenas()->set_tier(v1::DEVICE);
  program.add_arenas()->set_tier(v1::HOST);
  AddBuffer(1000, v1::PERSISTENT, &program);
  for (int64_t bytes : {100, 300, 50, 7}) AddBuffer(bytes, v1::STEP, &program);
  program.mutable_buffers(4)->set_arena(1);
  const uint32_t used[] = {1, 1, 2, 2};
  for (int i = 0; i < 4; ++i) {
    v1::Instruction* instruction = program.mutable_sequences(0)->mutable_instructions(i);
    instruction->mutable_operands(0)->set_buffer(used[i]);
  }
  const Simulation simulation = SimulateOrDie(program);
  std::vector<std::pair<double, int64_t>> curve;
  for (const MemoryPoint& point : simulation.stages[0].memory) {
    curve.emplace_back(point.seconds, point.bytes);
  }
  EXPECT_THAT(curve, testing::ElementsAre(std::pair(0.0, 1100), std::pair(5.0, 1300),
                                          std::pair(14.0, 1000)));
  EXPECT_EQ(simulation.stages[0].peak_bytes, 1300);
}

TEST(SimulateTest, SixteenStagesOfTenThousandInstructionsTakeLessThanASecond) {
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
