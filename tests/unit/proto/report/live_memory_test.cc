// SPDX-License-Identifier: Apache-2.0
#include "proto/report/live_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "proto/program/tiers.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

constexpr size_t kAll = 1 << 20;

// weight 100 (device) is fetched from its 100 bytes on the host; compute makes `x` 10 from it, then
// `y` 20 from `x`; the copy stream carries `y` away to `out` 20 on the host.
class LiveMemoryTest : public testing::Test {
 protected:
  LiveMemoryTest() {
    for (const v1::Tier tier : {v1::DEVICE, v1::HOST}) {
      v1::Arena* arena = program_.add_arenas();
      arena->set_id(program_.arenas_size() - 1);
      arena->set_tier(tier);
      arena->set_bytes(1000);
    }
    for (const v1::StreamKind kind : {v1::COMPUTE, v1::HOST_TO_DEVICE, v1::DEVICE_TO_HOST})
      program_.add_streams()->set_kind(kind);
    AddBuffer("rest", v1::PARAMETER, 100, 1, v1::PERSISTENT);
    AddBuffer("weight", v1::PARAMETER, 100, 0, v1::STEP);
    AddBuffer("x", v1::ACTIVATION, 10, 0, v1::STEP);
    AddBuffer("y", v1::GRADIENT, 20, 0, v1::STEP);
    AddBuffer("out", v1::GRADIENT, 20, 1, v1::STEP);
    v1::Buffer* outside = AddBuffer("outside", v1::EXTERNAL, 7777, 0, v1::PERSISTENT);
    outside->set_arena(99);
    v1::Sequence* train = program_.add_sequences();
    train->set_name("train");
    Add("fetch weight", 1, {}, {{0, v1::READ}, {1, v1::WRITE}})->mutable_copy();
    Add("make x", 0, {0}, {{1, v1::READ}, {2, v1::WRITE}})->mutable_compute();
    Add("make y", 0, {}, {{2, v1::READ}, {3, v1::WRITE}})->mutable_compute();
    Add("carry y", 2, {2}, {{3, v1::READ}, {4, v1::WRITE}})->mutable_copy();
  }

  v1::Buffer* AddBuffer(const char* name, v1::BufferClass buffer_class, int64_t bytes,
                        uint32_t arena, v1::Lifetime lifetime) {
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(program_.buffers_size() - 1);
    buffer->set_name(name);
    buffer->set_class_(buffer_class);
    buffer->set_bytes(bytes);
    buffer->set_arena(arena);
    buffer->set_lifetime(lifetime);
    return buffer;
  }

  v1::Instruction* Add(const char* text, uint32_t stream, std::vector<uint32_t> waits,
                       std::vector<std::pair<uint32_t, v1::Access>> operands) {
    v1::Sequence* train = program_.mutable_sequences(0);
    v1::Instruction* instruction = train->add_instructions();
    instruction->set_id(train->instructions_size() - 1);
    instruction->set_text(text);
    instruction->set_stream(stream);
    for (const uint32_t wait : waits) instruction->add_waits(wait);
    for (const auto& [buffer, access] : operands) {
      v1::Operand* operand = instruction->add_operands();
      operand->set_buffer(buffer);
      operand->set_access(access);
    }
    return instruction;
  }

  LiveMemory Create() {
    auto memory = LiveMemory::Create(&program_);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  ByTierAndClass At(std::vector<int32_t> finished) {
    return Create().At({.sequence = 0, .finished = finished});
  }

  v1::Program program_;
};

TEST_F(LiveMemoryTest, WithoutASequenceOnlyPersistentBuffersLive) {
  const ByTierAndClass bytes = Create().At({});
  EXPECT_EQ(Total(bytes[v1::DEVICE]), 0);
  EXPECT_EQ(bytes[v1::HOST][v1::PARAMETER], 100);
  EXPECT_EQ(Total(bytes[v1::HOST]), 100);
}

TEST_F(LiveMemoryTest, ABufferLivesFromTheStartOfItsWriterToTheEndOfItsLastReader) {
  EXPECT_EQ(Total(At({0, 0, 0})[v1::DEVICE]), 100);        // being fetched
  EXPECT_EQ(Total(At({0, 1, 0})[v1::DEVICE]), 110);        // x is being made
  EXPECT_EQ(At({1, 1, 0})[v1::DEVICE][v1::PARAMETER], 0);  // nobody reads it any more
  EXPECT_EQ(Total(At({1, 1, 0})[v1::DEVICE]), 30);         // x and y
  EXPECT_EQ(Total(At({2, 1, 0})[v1::DEVICE]), 20);         // y is being carried away
  EXPECT_EQ(At({2, 1, 0})[v1::HOST][v1::GRADIENT], 20);
  EXPECT_EQ(Total(At({3, 2, 2})[v1::DEVICE]), 0);  // the counters' end mark
}

TEST_F(LiveMemoryTest, WhatWaitsHasNotBegun) {
  EXPECT_EQ(At({1, 1, 0})[v1::HOST][v1::GRADIENT], 0);
  EXPECT_EQ(At({0, 0, 0})[v1::DEVICE][v1::ACTIVATION], 0);
}

TEST_F(LiveMemoryTest, AnInstructionIsUnderWayWhenAllThatItWaitsForHasFinished) {
  const auto under_way = [this](std::vector<int32_t> finished, size_t stream) {
    return Create().IsUnderWay({.sequence = 0, .finished = finished}, stream);
  };
  EXPECT_TRUE(under_way({0, 0, 0}, 1)) << "the fetch";
  EXPECT_FALSE(under_way({0, 0, 0}, 0)) << "it waits for that";
  EXPECT_TRUE(under_way({0, 1, 0}, 0));
  EXPECT_FALSE(under_way({3, 2, 2}, 0)) << "at its end";
  EXPECT_FALSE(under_way({0, 0, 0}, 9)) << "there is no such stream";
}

TEST_F(LiveMemoryTest, APositionOfAnotherProgramCountsAsNone) {
  EXPECT_EQ(Total(Create().At({.sequence = 0, .finished = {}})[v1::DEVICE]), 0);
  const std::vector<int32_t> finished = {0, 0, 0};
  EXPECT_EQ(Total(Create().At({.sequence = 7, .finished = finished})[v1::DEVICE]), 0);
}

TEST_F(LiveMemoryTest, NamesTheLargestBuffersAndWhatMadeThem) {
  const LiveMemory memory = Create();
  const std::vector<int32_t> finished = {1, 1, 0};
  const auto largest = memory.LargestAt({.sequence = 0, .finished = finished}, 2);
  ASSERT_EQ(largest.size(), 2u);
  EXPECT_EQ(largest[0].buffer->name(), "rest");
  EXPECT_EQ(largest[0].tier, v1::HOST);
  EXPECT_EQ(largest[0].made_by.instruction, nullptr);
  EXPECT_EQ(largest[1].buffer->name(), "y");
  ASSERT_NE(largest[1].made_by.instruction, nullptr);
  EXPECT_EQ(largest[1].made_by.instruction->text(), "make y");
}

TEST_F(LiveMemoryTest, TheLargestFreeBlockLiesBetweenLiveBuffers) {
  program_.mutable_buffers(2)->set_offset(300);  // x [300, 310), y [700, 720) of 1000
  program_.mutable_buffers(3)->set_offset(700);
  const std::vector<int32_t> both = {1, 1, 0}, one = {2, 1, 0};
  const LiveMemory memory = Create();
  EXPECT_EQ(memory.LargestFree({.sequence = 0, .finished = both}, v1::DEVICE), 390);
  EXPECT_EQ(memory.LargestFree({.sequence = 0, .finished = one}, v1::DEVICE), 700);
  EXPECT_EQ(memory.LargestFree({}, v1::DEVICE), 1000);
  EXPECT_EQ(memory.LargestFree({}, v1::HOST), 900);
}

TEST_F(LiveMemoryTest, NamesTheInstructionAtWhichAStreamStands) {
  const LiveMemory memory = Create();
  const std::vector<int32_t> finished = {1, 1, 0};
  const ProgramPosition position{.sequence = 0, .finished = finished};
  EXPECT_EQ(memory.Current(position, 0).instruction->text(), "make y");
  EXPECT_EQ(memory.Current(position, 1).instruction, nullptr);
  EXPECT_EQ(memory.Current(position, 2).instruction->text(), "carry y");
  EXPECT_EQ(memory.Current({}, 0).instruction, nullptr);
}

TEST_F(LiveMemoryTest, TheTimelineKeepsThePeakHoweverFewPointsItHas) {
  const LiveMemory memory = Create();
  const MemoryTimeline all = memory.Timeline(0, 100, 10);
  ASSERT_EQ(all.points.size(), 4u);
  EXPECT_EQ(Total(all.points[0].bytes[v1::DEVICE]), 100);
  EXPECT_EQ(Total(all.points[1].bytes[v1::DEVICE]), 110);
  EXPECT_EQ(Total(all.points[2].bytes[v1::DEVICE]), 30);
  EXPECT_EQ(Total(all.points[3].bytes[v1::HOST]), 120);
  for (const size_t points : {1, 2, 3}) {
    const MemoryTimeline few = memory.Timeline(0, points, 10);
    EXPECT_LE(few.points.size(), points);
    EXPECT_EQ(Total(few.points[0].bytes[v1::DEVICE]), 110);
    EXPECT_EQ(Total(few.points.back().bytes[v1::HOST]), 120);
    EXPECT_EQ(few.peaks[v1::DEVICE].bytes, 110);
    EXPECT_EQ(few.peaks[v1::DEVICE].instruction, 1u);
    ASSERT_EQ(few.peaks[v1::DEVICE].largest.size(), 2u);
    EXPECT_EQ(few.peaks[v1::DEVICE].largest[0].made_by.instruction->text(), "fetch weight");
  }
}

TEST_F(LiveMemoryTest, RefusesProgramsThatPointOutside) {
  const auto refused = [this](auto break_it) {
    v1::Program program = program_;
    break_it(program);
    return LiveMemory::Create(&program).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](v1::Program& p) { p.mutable_buffers(1)->set_arena(2); }));
  EXPECT_TRUE(refused([](v1::Program& p) { p.mutable_buffers(1)->set_id(2); }));
  EXPECT_TRUE(refused(
      [](v1::Program& p) { p.mutable_sequences(0)->mutable_instructions(1)->set_stream(3); }));
  EXPECT_TRUE(refused(
      [](v1::Program& p) { p.mutable_sequences(0)->mutable_instructions(1)->set_waits(0, 1); }));
  EXPECT_TRUE(refused([](v1::Program& p) {
    p.mutable_sequences(0)->mutable_instructions(1)->mutable_operands(0)->set_buffer(6);
  }));
}

// Executes a sequence in an order drawn at random among those that streams and waits allow.
class Execution {
 public:
  Execution(const v1::Program& program, int sequence, uint32_t seed)
      : program_(program), sequence_(sequence), random_(seed), ids_(program.streams_size()) {
    for (const v1::Instruction& instruction : program.sequences(sequence).instructions()) {
      positions_.push_back(static_cast<int32_t>(ids_[instruction.stream()].size()));
      ids_[instruction.stream()].push_back(static_cast<int>(instruction.id()));
    }
    finished_.resize(program.streams_size());
  }
  const std::vector<int32_t>& finished() const { return finished_; }

  // False at the end.
  bool Advance() {
    std::vector<size_t> ready;
    for (size_t stream = 0; stream < ids_.size(); ++stream) {
      if (finished_[stream] < static_cast<int32_t>(ids_[stream].size()) &&
          CanRun(ids_[stream][finished_[stream]]))
        ready.push_back(stream);
    }
    if (ready.empty()) return false;
    ++finished_[ready[random_() % ready.size()]];
    return true;
  }

 private:
  bool CanRun(int id) const {
    const auto& all = program_.sequences(sequence_).instructions();
    return std::all_of(all[id].waits().begin(), all[id].waits().end(), [&](uint32_t wait) {
      return finished_[all[static_cast<int>(wait)].stream()] > positions_[wait];
    });
  }

  const v1::Program& program_;
  const int sequence_;
  std::mt19937 random_;
  std::vector<std::vector<int>> ids_;  // by stream
  std::vector<int32_t> positions_;     // by id
  std::vector<int32_t> finished_;
};

void ExpectDisjoint(std::vector<LiveBuffer> live, const std::string& where) {
  std::sort(live.begin(), live.end(), [](const LiveBuffer& a, const LiveBuffer& b) {
    return std::pair(a.buffer->arena(), a.buffer->offset()) <
           std::pair(b.buffer->arena(), b.buffer->offset());
  });
  for (size_t i = 1; i < live.size(); ++i) {
    const v1::Buffer &before = *live[i - 1].buffer, &after = *live[i].buffer;
    if (before.arena() != after.arena()) continue;
    ASSERT_LE(before.offset() + before.bytes(), after.offset())
        << before.name() << " and " << after.name() << " " << where;
  }
}

// The packer lets buffers share bytes when their lives do not meet; if two that share were live at
// once for any order of execution, one of the two would be wrong about lives.
TEST(CompiledLiveMemoryTest, BuffersThatShareBytesAreNeverLiveTogether) {
  for (const TinyJob& job :
       {TinyJob{.family = "gpt2"},
        TinyJob{.family = "llama", .precision = "bf16", .data_parallel = 2, .zero_stage = 3},
        TinyJob{.family = "qwen3", .data_parallel = 2, .micro_batches = 2, .zero_stage = 2},
        TinyJob{.family = "llama", .micro_batches = 3, .pipeline_parallel = 2}}) {
    for (const v1::Program& program : CompileStages(job)) {
      const auto memory = LiveMemory::Create(&program);
      ASSERT_TRUE(memory.ok()) << memory.status();
      for (int sequence = 0; sequence < program.sequences_size(); ++sequence) {
        Execution run(program, sequence, 1234);
        int64_t most = 0;
        do {
          const ProgramPosition position{.sequence = sequence, .finished = run.finished()};
          ExpectDisjoint(memory->LargestAt(position, kAll), Describe(job));
          most = std::max(most, Total(memory->At(position)[v1::DEVICE]));
        } while (run.Advance());
        EXPECT_LE(most, memory->ArenaBytes()[v1::DEVICE]);
        const MemoryTimeline timeline = memory->Timeline(sequence, 10, 5);
        EXPECT_LE(timeline.peaks[v1::DEVICE].bytes, program.arenas(0).lower_bound_bytes())
            << Describe(job);
        if (program.sequences(sequence).name() == "train") {
          EXPECT_GT(2 * most, timeline.peaks[v1::DEVICE].bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace
