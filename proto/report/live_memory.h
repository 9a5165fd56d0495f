// Which bytes of a program hold something, and what made them. A program is static, so this is a
// function of how far each stream has come, and nothing has to be counted while it runs.
//
// In: a program, a sequence of it and how many instructions of each stream have finished. Out: live
// bytes by tier and class, the largest live buffers, the whole course of a sequence. A step buffer
// lives from the start of its first instruction to the end of its last one on all streams; a
// persistent one always.
//
// Of a program with loops it looks at a list of few iterations (played_program.h): a position in a
// later one is moved back by as many iterations as change nothing, so that it costs the same after
// 100,000 of them.
//
// Borrows the program. Pure and thread-safe after Create.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/program/loop_positions.h"
#include "proto/program/played_program.h"
#include "proto/v1/program.pb.h"

namespace terrace {

using ByClass = std::array<int64_t, v1::BufferClass_ARRAYSIZE>;  // by v1::BufferClass
using ByTierAndClass = std::array<ByClass, v1::Tier_ARRAYSIZE>;  // by v1::Tier

int64_t Total(const ByClass& classes);

// An instruction as it is executed: one of a loop has a micro-batch in each iteration.
struct ExecutedInstruction {
  const v1::Instruction* instruction = nullptr;  // of the program; null: none
  int micro_batch = -1;
};

// "812 mlp_down dweight, layer 3, micro-batch 1".
std::string InstructionWords(const ExecutedInstruction& executed);

struct LiveBuffer {
  const v1::Buffer* buffer = nullptr;  // of the program
  v1::Tier tier = v1::TIER_UNSPECIFIED;
  ExecutedInstruction made_by;  // none: holds something since before the sequence
};

// How far the streams have come in a sequence; sequence -1: none is being executed.
struct ProgramPosition {
  int sequence = -1;  // index in Program.sequences
  // Executed instructions, by stream; more than there are: all. Those of a loop count once an
  // iteration.
  std::span<const int32_t> finished;
};

struct MemoryTimeline {
  // Several instructions in list order; the bytes are those of the instruction at which the tier
  // holds most. Instructions are places in LiveMemory::played().
  struct Point {
    uint32_t first_instruction = 0;
    ByTierAndClass bytes{};
  };
  struct Peak {
    int64_t bytes = 0;
    uint32_t instruction = 0;
    std::vector<LiveBuffer> largest;  // that live then, largest first
  };
  std::vector<Point> points;
  std::array<Peak, v1::Tier_ARRAYSIZE> peaks;  // by v1::Tier
};

class LiveMemory {
 public:
  // INVALID_ARGUMENT when indices inside the program point outside of it.
  static absl::StatusOr<LiveMemory> Create(const v1::Program* program);

  const v1::Program& program() const { return *program_; }
  // The list whose places Life and Timeline tell of.
  const PlayedProgram& played() const { return played_; }
  // What stands at a place of the list.
  ExecutedInstruction Executed(int sequence, uint32_t place) const {
    return ExecutedAt(sequence, static_cast<int32_t>(place), {});
  }
  // Where the list has the instruction of the program; of a loop's, in the middle of the iterations
  // that it has. REQUIRES: it is one of the sequence.
  uint32_t PlaceOf(int sequence, uint32_t instruction) const;
  // Of all arenas, on the device with the segments that the caching allocator will need: 0 where
  // the program has none.
  std::array<int64_t, v1::Tier_ARRAYSIZE> ArenaBytes() const;

  // A position that does not match the program counts as none.
  ByTierAndClass At(const ProgramPosition& position) const;
  // Of all tiers together, largest first, at most `count`.
  std::vector<LiveBuffer> LargestAt(const ProgramPosition& position, size_t count) const;
  // Places of the first and the last instruction that use a buffer of the list; -1: the sequence
  // does not.
  std::pair<int32_t, int32_t> Life(int sequence, uint32_t buffer) const {
    return {sequences_[sequence].first[buffer], sequences_[sequence].last[buffer]};
  }
  // The largest range of the tier's arena in which no live buffer lies. REQUIRES: buffers of the
  // tier have offsets (not so on the device in caching mode).
  int64_t LargestFree(const ProgramPosition& position, v1::Tier tier) const;
  // What the stream executes or waits to execute; none at its end.
  ExecutedInstruction Current(const ProgramPosition& position, size_t stream) const;
  // Whether it executes that: all that the instruction waits for on other streams has finished.
  bool IsUnderWay(const ProgramPosition& position, size_t stream) const;

  // REQUIRES: the sequence is one of the program; points_max > 0.
  MemoryTimeline Timeline(int sequence, size_t points_max, size_t largest_max) const;

 private:
  // What one stream does with a step buffer, by positions within the stream.
  struct Use {
    uint32_t buffer = 0;
    uint32_t stream = 0;
    int32_t first = 0;
    int32_t last = 0;
  };
  // A sequence of the list; instructions are places in it.
  struct SequenceUses {
    std::vector<Use> uses;                       // ordered by buffer
    std::vector<std::vector<uint32_t>> streams;  // instructions
    std::vector<int32_t> positions;              // by instruction
    std::vector<int32_t> first, last;  // in list order, by buffer; first -1: not used here
    std::vector<int32_t> made_by;      // the first instruction that writes it, by buffer; or -1
  };
  explicit LiveMemory(const v1::Program* program, PlayedProgram played)
      : program_(program), played_(std::move(played)) {}
  static SequenceUses Prepare(const v1::Program& program, const v1::Sequence& sequence);
  bool Matches(const ProgramPosition& position) const;
  // The instruction at which the stream stands; -1 at its end.
  int32_t Next(int sequence, const LoopPositions::Place& place, size_t stream) const;
  // `skipped` as in LoopPositions::Place; empty: none.
  ExecutedInstruction ExecutedAt(int sequence, int32_t instruction,
                                 const std::vector<int64_t>& skipped) const;
  // By stream: instructions that have begun.
  std::vector<int32_t> Begun(int sequence, const LoopPositions::Place& place) const;
  // Ids of the step buffers.
  std::vector<uint32_t> LiveAt(int sequence, const LoopPositions::Place& place) const;
  LiveBuffer Describe(uint32_t buffer, int sequence, const std::vector<int64_t>& skipped) const;
  std::vector<LiveBuffer> Largest(std::vector<uint32_t> buffers, int sequence,
                                  const std::vector<int64_t>& skipped, size_t count) const;
  void AddPeaks(int sequence, size_t largest_max, MemoryTimeline* timeline) const;

  const v1::Program* program_;
  PlayedProgram played_;
  std::vector<LoopPositions> positions_;  // by sequence
  int64_t segment_bytes_ = 0;             // of the caching allocator
  std::vector<uint32_t> persistent_;      // in an arena
  ByTierAndClass persistent_bytes_{};
  std::vector<SequenceUses> sequences_;
};

}  // namespace terrace
