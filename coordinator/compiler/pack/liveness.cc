// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/liveness.h"

#include <algorithm>

namespace terrace {
namespace {

// Who is known to have finished when, by vector clocks. Instructions are the positions of the list.
struct Timeline {
  size_t stream_count = 0;
  // By instruction and stream: how many of that stream's instructions have finished once this one
  // has, itself included. One array: the clocks of 10^5 instructions on 32 streams are 13 MB.
  std::vector<int32_t> clocks;
  std::vector<int32_t> index_in_stream;       // by instruction
  std::vector<std::vector<int32_t>> streams;  // instructions by stream

  int32_t* clock(size_t instruction) { return clocks.data() + instruction * stream_count; }
  const int32_t* clock(size_t instruction) const {
    return clocks.data() + instruction * stream_count;
  }
};

Timeline BuildTimeline(const v1::Program& program, const v1::Sequence& sequence) {
  Timeline timeline;
  const size_t count = sequence.instructions_size();
  timeline.stream_count = program.streams_size();
  timeline.streams.resize(timeline.stream_count);
  timeline.clocks.resize(count * timeline.stream_count);
  timeline.index_in_stream.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const v1::Instruction& instruction = sequence.instructions(static_cast<int>(i));
    std::vector<int32_t>& stream = timeline.streams[instruction.stream()];
    int32_t* clock = timeline.clock(i);
    const auto join = [&](size_t earlier) {
      const int32_t* other = timeline.clock(earlier);
      for (size_t s = 0; s < timeline.stream_count; ++s) clock[s] = std::max(clock[s], other[s]);
    };
    if (!stream.empty()) join(stream.back());
    for (uint32_t wait : instruction.waits()) join(wait);
    timeline.index_in_stream.push_back(static_cast<int32_t>(stream.size()));
    stream.push_back(static_cast<int32_t>(i));
    clock[instruction.stream()] = static_cast<int32_t>(stream.size());
  }
  return timeline;
}

// Calls visit(buffer) for each that an instruction touches.
template <typename F>
void ForEachBuffer(const v1::Instruction& instruction, F visit) {
  const auto touch = [&](const v1::Operand& operand) {
    if (operand.access() != v1::ACCESS_UNSPECIFIED) visit(operand.buffer());
  };
  for (const v1::Operand& operand : instruction.operands()) touch(operand);
  touch(instruction.compute().workspace());
}

// By arena and stream: the instructions at which a STEP buffer of the arena may begin, those that
// are not known to follow another one that touches it. All other touches of the buffer follow one
// of these, so that only these have to know what held its bytes before.
std::vector<std::vector<std::vector<int32_t>>> Beginnings(const v1::Program& program,
                                                          const v1::Sequence& sequence,
                                                          const Timeline& timeline) {
  std::vector<std::vector<std::vector<int32_t>>> beginnings(
      program.arenas_size(), std::vector<std::vector<int32_t>>(timeline.stream_count));
  std::vector<int32_t> first(program.buffers_size(), -1);
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    ForEachBuffer(instruction, [&](uint32_t id) {
      const v1::Buffer& buffer = program.buffers(static_cast<int>(id));
      if (buffer.lifetime() != v1::STEP) return;
      int32_t& begin = first[id];
      if (begin < 0) {
        begin = i;
      } else {
        const uint32_t stream = sequence.instructions(begin).stream();
        if (timeline.clock(i)[stream] > timeline.index_in_stream[begin]) return;
      }
      std::vector<int32_t>& of_stream = beginnings[buffer.arena()][instruction.stream()];
      if (of_stream.empty() || of_stream.back() != i) of_stream.push_back(i);
    });
  }
  return beginnings;
}

// For each instruction the position from which on every one of `beginnings` (by stream) happens
// after it.
//
// Along stream t the clock entry of stream s only grows, so "the last instruction of t that does
// not know i" moves forward with i, and one pass over each pair of streams finds them all: in
// instructions x streams steps.
std::vector<int64_t> SettledFrom(const Timeline& timeline,
                                 const std::vector<std::vector<int32_t>>& beginnings) {
  std::vector<int64_t> settled(timeline.index_in_stream.size());
  for (size_t i = 0; i < settled.size(); ++i) settled[i] = static_cast<int64_t>(i) + 1;
  for (size_t s = 0; s < timeline.stream_count; ++s) {
    if (timeline.streams[s].empty()) continue;
    for (size_t t = 0; t < timeline.stream_count; ++t) {
      if (s == t) continue;
      const std::vector<int32_t>& others = beginnings[t];
      size_t unaware = 0;  // instructions of t that do not know the present one of s
      for (int32_t i : timeline.streams[s]) {
        while (unaware < others.size() &&
               timeline.clock(others[unaware])[s] <= timeline.index_in_stream[i]) {
          ++unaware;
        }
        if (unaware > 0) settled[i] = std::max<int64_t>(settled[i], others[unaware - 1] + 1);
      }
    }
  }
  return settled;
}

}  // namespace

std::vector<Life> Liveness(const v1::Program& program, const v1::Sequence& sequence) {
  const Timeline timeline = BuildTimeline(program, sequence);
  std::vector<std::vector<int64_t>> settled;  // by arena
  for (const auto& beginnings : Beginnings(program, sequence, timeline))
    settled.push_back(SettledFrom(timeline, beginnings));
  std::vector<Life> lives(program.buffers_size());
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    ForEachBuffer(sequence.instructions(i), [&](uint32_t id) {
      Life& life = lives[id];
      if (life.begin == life.end) life.begin = i;
      life.end = std::max(life.end, settled[program.buffers(static_cast<int>(id)).arena()][i]);
    });
  }
  return lives;
}

}  // namespace terrace
