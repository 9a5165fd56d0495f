// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/liveness.h"

#include <algorithm>

namespace terrace {
namespace {

// Per stream, how many of its instructions are known to have finished when some instruction starts.
using Clock = std::vector<int32_t>;

struct Timeline {
  std::vector<Clock> clocks;                  // by instruction; its own position included
  std::vector<int32_t> index_in_stream;       // by instruction
  std::vector<std::vector<int32_t>> streams;  // positions in the list, by stream
};

Timeline BuildTimeline(const v1::Program& program, const v1::Sequence& sequence) {
  Timeline timeline;
  timeline.streams.resize(program.streams_size());
  timeline.clocks.reserve(sequence.instructions_size());
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    std::vector<int32_t>& stream = timeline.streams[instruction.stream()];
    Clock clock =
        stream.empty() ? Clock(program.streams_size(), 0) : timeline.clocks[stream.back()];
    for (uint32_t wait : instruction.waits()) {
      const Clock& other = timeline.clocks[wait];
      for (size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], other[s]);
    }
    timeline.index_in_stream.push_back(static_cast<int32_t>(stream.size()));
    stream.push_back(i);
    clock[instruction.stream()] = static_cast<int32_t>(stream.size());
    timeline.clocks.push_back(std::move(clock));
  }
  return timeline;
}

// For each instruction the position from which on every instruction, of whatever stream, happens
// after it.
//
// Along stream t the clock entry of stream s only grows, so "the last instruction of t that does
// not know i" moves forward with i, and one pass over each pair of streams finds them all.
std::vector<int64_t> SettledFrom(const Timeline& timeline) {
  std::vector<int64_t> settled(timeline.clocks.size());
  for (size_t i = 0; i < settled.size(); ++i) settled[i] = static_cast<int64_t>(i) + 1;
  for (size_t s = 0; s < timeline.streams.size(); ++s) {
    for (size_t t = 0; t < timeline.streams.size(); ++t) {
      if (s == t) continue;
      size_t unaware = 0;  // instructions of t that do not know the present one of s
      for (int32_t i : timeline.streams[s]) {
        const std::vector<int32_t>& others = timeline.streams[t];
        while (unaware < others.size() &&
               timeline.clocks[others[unaware]][s] <= timeline.index_in_stream[i]) {
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
  const std::vector<int64_t> settled = SettledFrom(BuildTimeline(program, sequence));
  std::vector<Life> lives(program.buffers_size());
  const auto touch = [&](const v1::Operand& operand, int64_t position) {
    if (operand.access() == v1::ACCESS_UNSPECIFIED) return;
    Life& life = lives[operand.buffer()];
    if (life.begin == life.end) life.begin = position;
    life.end = std::max(life.end, settled[position]);
  };
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    for (const v1::Operand& operand : instruction.operands()) touch(operand, i);
    touch(instruction.compute().workspace(), i);
  }
  return lives;
}

}  // namespace terrace
