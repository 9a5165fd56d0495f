// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "proto/check/program_check.h"
#include "proto/program/loops.h"
#include "proto/report/layer_memory.h"
#include "proto/report/live_memory.h"
#include "tests/unit/proto/program/loop_program.h"

namespace terrace {
namespace {

constexpr size_t kAll = 1 << 20;

LiveMemory Create(const v1::Program& program) {
  auto memory = LiveMemory::Create(&program);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

// Executes streams in an order drawn by chance and calls `look(finished)` after each instruction.
// `list` has no loops.
template <typename Look>
void RunByChance(const v1::Sequence& list, int streams, uint32_t seed, const Look& look) {
  std::vector<std::vector<int>> instructions(streams);
  std::vector<int32_t> places;
  for (const v1::Instruction& instruction : list.instructions()) {
    places.push_back(static_cast<int32_t>(instructions[instruction.stream()].size()));
    instructions[instruction.stream()].push_back(static_cast<int>(instruction.id()));
  }
  std::mt19937 random(seed);
  std::vector<int32_t> finished(streams, 0);
  look(finished);
  for (int done = 0; done < list.instructions_size();) {
    const int stream = static_cast<int>(random() % streams);
    if (finished[stream] >= static_cast<int32_t>(instructions[stream].size())) continue;
    const v1::Instruction& next = list.instructions(instructions[stream][finished[stream]]);
    const bool ready = std::all_of(next.waits().begin(), next.waits().end(), [&](uint32_t wait) {
      return finished[list.instructions(static_cast<int>(wait)).stream()] > places[wait];
    });
    if (!ready) continue;
    ++finished[stream];
    ++done;
    look(finished);
  }
}

std::vector<std::string> Names(const std::vector<LiveBuffer>& buffers) {
  std::vector<std::string> names;
  for (const LiveBuffer& live : buffers) {
    // Values of one loop are told apart by their micro-batch; their buffers by their places.
    names.push_back(live.buffer->name().substr(0, live.buffer->name().find('@')) + " " +
                    std::to_string(live.made_by.micro_batch));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The whole step, written out, tells the truth.
TEST(LiveMemoryLoopsTest, EveryPositionOfALongLoopIsThatOfTheWholeStep) {
  LoopProgram made({.micro_batches = 60});
  const PlayedProgram whole(&made.program(), 0);
  const LiveMemory loops = Create(made.program()), straight = Create(whole.program());
  ASSERT_GT(loops.played().left_out(), 30);
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    RunByChance(whole.program().sequences(0), 3, seed, [&](const std::vector<int32_t>& finished) {
      const ProgramPosition position{.sequence = 0, .finished = finished};
      ASSERT_EQ(loops.At(position), straight.At(position)) << finished[0] << " of compute";
      ASSERT_EQ(Names(loops.LargestAt(position, kAll)), Names(straight.LargestAt(position, kAll)))
          << finished[0] << " of compute";
      ASSERT_EQ(loops.LargestFree(position, v1::DEVICE),
                straight.LargestFree(position, v1::DEVICE));
      for (size_t stream = 0; stream < 3; ++stream) {
        const ExecutedInstruction one = loops.Current(position, stream);
        const ExecutedInstruction other = straight.Current(position, stream);
        ASSERT_EQ(one.instruction == nullptr, other.instruction == nullptr);
        if (one.instruction == nullptr) continue;
        ASSERT_EQ(one.instruction->text(), other.instruction->text());
        ASSERT_EQ(one.micro_batch, other.micro_batch);
      }
    });
  }
}

TEST(LiveMemoryLoopsTest, NamesTheInstructionAndItsMicroBatchFarInALoop) {
  LoopProgram made({.micro_batches = 100'002});
  const LiveMemory memory = Create(made.program());
  // In iteration 70,000: forward and norm are over.
  const std::vector<int32_t> finished = {3 + 3 * 70'000 + 2, 2 + 70'001, 1 + 70'000};
  const ProgramPosition position{.sequence = 0, .finished = finished};
  EXPECT_EQ(InstructionWords(memory.Current(position, 0)), "9 backward, micro-batch 70001");
  EXPECT_EQ(InstructionWords(memory.Current(position, 1)), "6 load, micro-batch 70003");
  std::string x;
  for (const LiveBuffer& live : memory.LargestAt(position, kAll)) {
    if (live.buffer->class_() == v1::ACTIVATION && live.tier == v1::DEVICE &&
        live.buffer->name().find("layer0") != std::string::npos)
      x = live.buffer->name() + ", " + InstructionWords(live.made_by);
  }
  EXPECT_EQ(x, "mb.layer0.x.0, 7 forward, layer 0, micro-batch 70001");
}

TEST(LiveMemoryLoopsTest, TheTimelineHasThePeakOfTheWholeStep) {
  LoopProgram made({.micro_batches = 60});
  const PlayedProgram whole(&made.program(), 0);
  const LiveMemory loops = Create(made.program()), straight = Create(whole.program());
  const MemoryTimeline few = loops.Timeline(0, 10, kAll), all = straight.Timeline(0, 10, kAll);
  for (const v1::Tier tier : {v1::DEVICE, v1::HOST}) {
    EXPECT_GT(few.peaks[tier].bytes, 0);
    EXPECT_EQ(few.peaks[tier].bytes, all.peaks[tier].bytes);
    EXPECT_EQ(InstructionWords(loops.Executed(0, few.peaks[tier].instruction)).substr(2),
              InstructionWords(straight.Executed(0, all.peaks[tier].instruction)).substr(2));
  }
}

TEST(LiveMemoryLoopsTest, LayersAreThoseOfTheWholeStep) {
  LoopProgram made({.micro_batches = 60});
  const PlayedProgram whole(&made.program(), 0);
  const LiveMemory loops = Create(made.program()), straight = Create(whole.program());
  const std::vector<LayerMemory> few = LayersAtPeak(loops, 0), all = LayersAtPeak(straight, 0);
  ASSERT_EQ(few.size(), all.size());
  for (size_t i = 0; i < few.size(); ++i) {
    ASSERT_EQ(few[i].layers.size(), all[i].layers.size());
    for (size_t k = 0; k < few[i].layers.size(); ++k) {
      EXPECT_EQ(few[i].layers[k].layer, all[i].layers[k].layer);
      EXPECT_EQ(few[i].layers[k].bytes, all[i].layers[k].bytes);
      EXPECT_EQ(few[i].layers[k].most_bytes, all[i].layers[k].most_bytes);
    }
  }
  // Of a loop's instruction those of an iteration in the middle.
  const std::vector<LayerMemory> at = LayersAt(loops, 0, 7);
  ASSERT_FALSE(at.empty());
  EXPECT_EQ(at[0].instruction, 7u);
  EXPECT_EQ(at[0].words.substr(0, 9), "7 forward");
}

TEST(LiveMemoryLoopsTest, LoopsThatDoNotFitAreRefused) {
  LoopProgram made;
  made.program().mutable_sequences(0)->mutable_loops(0)->set_trips(0);
  EXPECT_EQ(LiveMemory::Create(&made.program()).status(), CheckCanBeWrittenOut(made.program()));
  EXPECT_EQ(LiveMemory::Create(&made.program()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LiveMemoryLoopsTest, SlotsThatNeverComeRoundAreRefused) {
  LoopProgram made({.micro_batches = 2'000'000'002});
  v1::Sequence* train = made.program().mutable_sequences(0);
  for (uint32_t slots : {3, 5, 7, 11, 13, 17, 19, 23, 29}) {
    v1::Operand* operand = train->mutable_instructions(7)->add_operands();
    operand->set_access(v1::READ);
    operand->set_slots(slots);
    for (uint32_t k = 0; k < slots; ++k) {
      v1::Buffer* buffer = made.program().add_buffers();
      buffer->set_id(made.program().buffers_size() - 1);
      if (k == 0) operand->set_buffer(buffer->id());
    }
  }
  EXPECT_EQ(LiveMemory::Create(&made.program()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace
