// Programs with loops do what the same programs do when their loops are written out.
//
// SPDX-License-Identifier: Apache-2.0
#include "proto/program/loops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/worker/vm/looped_program.h"
#include "tests/unit/worker/vm/member_of_two.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

using kernels::Op;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Rows that depend on the micro-batch. Keeps what it was asked and told, by stream.
class TellingIo final : public SequenceIo {
 public:
  void LoadBatch(int micro_batch, const BatchTarget& batch) override {
    const std::span<int32_t> tokens = batch.tokens;
    if (delays) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    EXPECT_TRUE(batch.targets.empty());
    loads.push_back(micro_batch);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = (micro_batch * 5 + static_cast<int32_t>(i) * 3) % LoopedProgram::kRows;
  }
  void LoadSchedule(std::span<float, 4>) override {}
  void Output(v1::OutputKind, std::span<const float> values) override {
    outputs.emplace_back(values.begin(), values.end());
  }

  bool delays = false;
  std::vector<int> loads;
  std::vector<std::vector<float>> outputs;

 private:
  std::minstd_rand random_;
};

struct Outcome {
  std::vector<int> loads;
  std::vector<std::vector<float>> outputs;
  std::vector<std::byte> memory;  // of the arena
};

// Of the second execution: the first leaves another iteration's operands behind.
Outcome OutcomeOf(const v1::Program& program, LoopedProgram* looped) {
  const std::vector<std::byte*> arenas = looped->tiny().Arenas();
  const int64_t bytes = program.arenas(0).bytes();
  std::memset(arenas[0], 0, bytes);
  auto* table = reinterpret_cast<float*>(arenas[0] + program.buffers(looped->table()).offset());
  for (int i = 0; i < LoopedProgram::kRows * LoopedProgram::kColumns; ++i)
    table[i] = 1.0F / static_cast<float>(i + 3);
  SystemClock clock;
  auto vm = Vm::Create(program, {.threads = 1, .arenas = arenas}, &clock, nullptr);
  EXPECT_TRUE(vm.ok()) << vm.status();
  TellingIo io;
  for (const bool delays : {false, true}) {
    io.loads.clear(), io.outputs.clear();
    io.delays = delays;
    EXPECT_TRUE((*vm)->Run("train", &io).ok());
  }
  return {io.loads, io.outputs, {arenas[0], arenas[0] + bytes}};
}

TEST(LoopsTest, TheSameBitsAndCallsAsWrittenOut) {
  for (const bool one_stream : {true, false}) {
    for (const uint32_t slots : {1, 2, 3}) {
      for (const uint32_t trips : {1, 2, 3, 7, 30}) {
        SCOPED_TRACE(testing::Message()
                     << slots << " slots, " << trips << " trips, one stream: " << one_stream);
        LoopedProgram looped({.slots = slots, .trips = trips, .one_stream = one_stream});
        const Outcome loop = OutcomeOf(looped.program(), &looped);
        const Outcome straight = OutcomeOf(WriteOut(looped.program(), 0).program, &looped);
        std::vector<int> all(looped.micro_batches());
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(loop.loads, all);
        EXPECT_EQ(straight.loads, all);
        EXPECT_EQ(loop.outputs, straight.outputs);
        EXPECT_EQ(loop.memory, straight.memory);
        EXPECT_NE(loop.outputs.at(1).at(0), loop.outputs.at(1).at(12)) << "rows are alike";
      }
    }
  }
}

// By waiting stream, as its instructions come: how far each stream must have come before them.
using Knowledge = std::vector<std::vector<std::vector<int32_t>>>;
Knowledge KnowledgeOf(const v1::Program& program, bool* any_moves) {
  const std::vector<std::byte*> arenas = {nullptr};
  SystemClock clock;
  auto prepared = PrepareSequence(program, program.sequences(0), {.arenas = arenas}, {}, {});
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  Knowledge knowledge;
  for (const PreparedStream& stream : prepared->streams) {
    auto& rows = knowledge.emplace_back();
    std::vector<int32_t> known(prepared->streams.size(), 0);
    for (PlayedCursor at = stream.cursor(); !at.AtEnd(); at.Advance()) {
      for (const WaitPoint& point : stream.instructions[at.index()].waits) {
        *any_moves = *any_moves || point.step > 0;
        known[point.stream] = std::max(known[point.stream], point.At(at.iteration()));
      }
      rows.push_back(known);
    }
  }
  return knowledge;
}

// Programs without sense, whose waits are any that the form allows.
v1::Program RandomProgram(std::mt19937* random) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>((*random)() % n); };
  v1::Program program;
  program.add_arenas()->set_tier(v1::DEVICE);
  for (const v1::StreamKind kind : {v1::COMPUTE, v1::HOST_COMPUTE, v1::HOST_COMPUTE})
    program.add_streams()->set_kind(kind);
  v1::Sequence* sequence = program.add_sequences();
  sequence->set_name("train");
  const uint32_t count = 6 + below(14);
  for (uint32_t begin = below(4); begin < count && sequence->loops_size() < 2;) {
    v1::Loop* loop = sequence->add_loops();
    loop->set_first(begin);
    loop->set_count(1 + below(std::min(count - begin, 7U)));
    loop->set_trips(1 + below(6));
    begin += loop->count() + below(3);
  }
  for (uint32_t id = 0; id < count; ++id) {
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_id(id);
    instruction->set_stream(below(3));
    EncodeOp(Op::kFill, kernels::FillAttrs{}, instruction->mutable_compute());
    for (uint32_t wait = 0; id > 0 && wait < below(3); ++wait) instruction->add_waits(below(id));
  }
  for (const v1::Loop& loop : sequence->loops()) {
    for (uint32_t id = loop.first(); id < count; ++id) {
      if (below(2) == 0) continue;
      v1::BackWait* wait = sequence->mutable_instructions(static_cast<int>(id))->add_back_waits();
      wait->set_instruction(loop.first() + below(loop.count()));
      wait->set_iterations(1 + below(3));
    }
  }
  return program;
}

TEST(LoopsTest, WhatAStreamKnowsOfOthersIsWhatTheWrittenOutProgramWaitsFor) {
  int with_moving_waits = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const v1::Program program = RandomProgram(&random);
    bool moves = false, never = false;
    const Knowledge loop = KnowledgeOf(program, &moves);
    const Knowledge straight = KnowledgeOf(WriteOut(program, 0).program, &never);
    ASSERT_EQ(loop, straight) << program.sequences(0).DebugString();
    EXPECT_FALSE(never);
    with_moving_waits += moves ? 1 : 0;
  }
  EXPECT_GT(with_moving_waits, 500);
}

TEST(LoopsTest, WaitsThatTheIterationBeforeImpliesAreDropped) {
  LoopedProgram looped({.slots = 1, .trips = 9});
  v1::Sequence* sequence = looped.tiny().program().mutable_sequences(0);
  // The array's sum of a micro-batch waits for what the gather has waited for, in its iteration or
  // the one before, and so does the gather itself.
  for (const uint32_t place : {1, 3}) {
    v1::BackWait* back =
        sequence->mutable_instructions(static_cast<int>(looped.body() + place))->add_back_waits();
    back->set_instruction(looped.body());
    back->set_iterations(1);
  }
  SystemClock clock;
  const auto prepared =
      PrepareSequence(looped.program(), *sequence, {.arenas = looped.tiny().Arenas()}, {}, {});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto waits = [&](size_t stream, size_t index) {
    std::vector<uint32_t> streams;
    for (const WaitPoint& point : prepared->streams[stream].instructions[index].waits)
      streams.push_back(point.stream);
    return streams;
  };
  EXPECT_THAT(waits(0, 1), ElementsAre(1, 2)) << "the gather: for its load, and the sum before";
  EXPECT_THAT(waits(2, 4), ElementsAre(0)) << "the first sum, for the gather";
  EXPECT_THAT(waits(2, 5), ElementsAre(1)) << "nobody on its stream has waited for a load";
}

TEST(LoopsTest, ManyIterationsKeepAsMuchAsAFew) {
  size_t slices = 0;
  for (const uint32_t trips : {200'000U, 400'000U}) {
    LoopedProgram looped({.slots = 3, .trips = trips});
    const auto prepared = PrepareSequence(looped.program(), looped.program().sequences(0),
                                          {.arenas = looped.tiny().Arenas()}, {}, {});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    size_t count = 0;
    for (const PreparedStream& stream : prepared->streams) {
      count += stream.slices.size();
      EXPECT_LE(MarksOf(stream), kMarksInLoopsMin);
    }
    EXPECT_LE(count, kRecordedInLoopsMax + looped.program().sequences(0).instructions_size());
    if (slices > 0) {
      EXPECT_EQ(count, slices);
    }
    slices = count;
  }
}

TEST(LoopsTest, AHundredThousandIterationsEndWithTheirSum) {
  constexpr uint32_t kTrips = 100'000;
  TinyProgram tiny({v1::COMPUTE, v1::HOST_COMPUTE});
  const uint32_t x = tiny.Buffer(v1::F32, {4}), y = tiny.Buffer(v1::F32, {4}),
                 sum = tiny.Buffer(v1::F32, {4});
  static_cast<void>(y);
  tiny.Compute(0, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, sum}});
  v1::Instruction* fill =
      tiny.Compute(1, Op::kFill, kernels::FillAttrs{.value = 1}, {{v1::WRITE, x}});
  v1::Instruction* add =
      tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, sum}});
  add->add_waits(fill->id());
  v1::BackWait* back = fill->add_back_waits();
  back->set_instruction(add->id());
  back->set_iterations(2);
  for (v1::Instruction* instruction : {fill, add}) instruction->mutable_operands(0)->set_slots(2);
  tiny.Output(0, v1::LOGITS, sum);
  v1::Loop* loop = tiny.program().mutable_sequences(0)->add_loops();
  loop->set_first(1), loop->set_count(2), loop->set_trips(kTrips);
  SystemClock clock;
  auto vm = Vm::Create(tiny.program(), {.threads = 1, .arenas = tiny.Arenas()}, &clock, nullptr);
  ASSERT_TRUE(vm.ok()) << vm.status();
  TellingIo io;
  ASSERT_TRUE((*vm)->Run("train", &io).ok());
  EXPECT_THAT(io.outputs.at(0), Each(kTrips));
  const SequenceTimes times = Times(*(*vm)->Find("train"));
  EXPECT_GT(times.compute, 0);
  EXPECT_LE(times.compute + times.offload_exposed, times.total * 1.000001);
}

class CallGroup final : public MemberOfTwo {
 public:
  explicit CallGroup(std::function<absl::Status(float*)> call) : call_(std::move(call)) {}
  absl::Status AllReduce(void* data, int64_t, ReduceType) override {
    return call_(static_cast<float*>(data));
  }

 private:
  const std::function<absl::Status(float*)> call_;
};

TEST(LoopsTest, AFailureEndsAllStreamsAndNamesInstructionAndIteration) {
  for (const bool in_loop : {true, false}) {
    TinyProgram tiny({v1::COMPUTE, v1::COLLECTIVE, v1::HOST_COMPUTE});
    const uint32_t x = tiny.Buffer(v1::F32, {4}), y = tiny.Buffer(v1::F32, {4});
    tiny.Compute(0, Op::kFill, kernels::FillAttrs{.value = 1}, {{v1::WRITE, x}});
    v1::Instruction* sum = tiny.AllReduce(1, x);
    tiny.Compute(2, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, y}})
        ->add_waits(sum->id());
    tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, y}, {v1::UPDATE, x}})->add_waits(2);
    tiny.Output(0, v1::LOGITS, x);
    if (in_loop) {
      v1::Loop* loop = tiny.program().mutable_sequences(0)->add_loops();
      loop->set_first(1), loop->set_count(3), loop->set_trips(50);
      v1::BackWait* back =
          tiny.program().mutable_sequences(0)->mutable_instructions(1)->add_back_waits();
      back->set_instruction(3), back->set_iterations(1);
    }
    int calls = 0;
    std::vector<std::unique_ptr<Communicator>> groups;
    groups.push_back(std::make_unique<CallGroup>([&](float*) {
      return calls++ == (in_loop ? 37 : 0) ? absl::UnavailableError("peer 1 is gone")
                                           : absl::OkStatus();
    }));
    SystemClock clock;
    auto vm =
        Vm::Create(tiny.program(), {.arenas = tiny.Arenas(), .groups = groups}, &clock, nullptr);
    ASSERT_TRUE(vm.ok()) << vm.status();
    TellingIo io;
    const absl::Status status = (*vm)->Run("train", &io);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), in_loop ? "iteration 37 of 0 to 49: instruction 1 (all_reduce): "
                                          "peer 1 is gone"
                                        : "instruction 1 (all_reduce): peer 1 is gone");
    EXPECT_THAT(io.outputs, IsEmpty());
  }
}

TEST(LoopsTest, CopiesOfAllIterationsCountAsTraffic) {
  constexpr uint32_t kTrips = 70'000;  // more than are recorded
  TinyProgram tiny({v1::COMPUTE, v1::DEVICE_TO_HOST});
  const uint32_t x = tiny.Buffer(v1::F32, {4}), far = tiny.Buffer(v1::F32, {4}, v1::HOST);
  tiny.Copy(1, v1::TO_HOST, {{x, far}});
  tiny.Copy(1, v1::TO_HOST, {{x, far}});
  tiny.Compute(0, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, x}});
  v1::Loop* loop = tiny.program().mutable_sequences(0)->add_loops();
  loop->set_first(1), loop->set_count(2), loop->set_trips(kTrips);
  std::vector<std::byte> host(4096);
  std::vector<std::byte*> arenas = tiny.Arenas();
  arenas.push_back(host.data());
  SystemClock clock;
  auto vm = Vm::Create(tiny.program(), {.arenas = arenas}, &clock, nullptr);
  ASSERT_TRUE(vm.ok()) << vm.status();
  TellingIo io;
  ASSERT_TRUE((*vm)->Run("train", &io).ok());
  const PreparedStream& copies = (*vm)->Find("train")->streams[1];
  EXPECT_LT(copies.slices.size(), kTrips);
  EXPECT_EQ((*vm)->traffic()[v1::TO_HOST].bytes, 16 * (int64_t{kTrips} + 1));
  EXPECT_GT((*vm)->traffic()[v1::TO_HOST].seconds, 0);
}

TEST(LoopsTest, ASequenceThatCountsTooFarIsRefused) {
  LoopedProgram looped({});
  looped.tiny().program().mutable_sequences(0)->mutable_loops(0)->set_trips(1U << 29);
  SystemClock clock;
  const auto vm = Vm::Create(looped.program(), {.arenas = looped.tiny().Arenas()}, &clock, nullptr);
  EXPECT_EQ(vm.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(vm.status().message()),
      HasSubstr("sequence train executes 2147483660 instructions, each iteration of its loops"));
}

TEST(LoopsTest, SlotsOutsideOfOneArenaAreRefused) {
  LoopedProgram looped({});
  v1::Operand* operand =
      looped.tiny().program().mutable_sequences(0)->mutable_instructions(2)->mutable_operands(0);
  operand->set_slots(1000);
  SystemClock clock;
  const auto vm = Vm::Create(looped.program(), {.arenas = looped.tiny().Arenas()}, &clock, nullptr);
  EXPECT_THAT(std::string(vm.status().message()),
              HasSubstr("instruction 2 (input): an operand has slots from buffer"));
}

}  // namespace
}  // namespace terrace
