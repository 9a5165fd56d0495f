// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/memory_over_time.h"

#include <algorithm>
#include <tuple>

#include "proto/program/tiers.h"

namespace terrace {
namespace {

struct Life {
  double begin = -1;  // no instruction names it
  double end = 0;
};
using Change = std::tuple<double, int64_t, v1::BufferClass>;  // when, bytes, of what

std::vector<Life> Lives(const v1::Program& program, const v1::Sequence& sequence,
                        const std::vector<RunInstruction>& run) {
  std::vector<Life> lives(program.buffers_size());
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    const auto touch = [&](const v1::Operand& operand) {
      if (operand.access() == v1::ACCESS_UNSPECIFIED) return;
      Life& life = lives[operand.buffer()];
      life.begin =
          life.begin < 0 ? run[i].start_seconds : std::min(life.begin, run[i].start_seconds);
      life.end = std::max(life.end, run[i].end_seconds);
    };
    for (const v1::Operand& operand : instruction.operands()) touch(operand);
    touch(instruction.compute().workspace());
  }
  return lives;
}

}  // namespace

MemoryOverTime MemoryOf(const v1::Program& program, const v1::Sequence& sequence,
                        const std::vector<RunInstruction>& run, v1::Tier tier, double seconds,
                        int columns) {
  const std::vector<Life> lives = Lives(program, sequence, run);
  ByClass now{};
  std::vector<Change> changes;
  for (int b = 0; b < program.buffers_size(); ++b) {
    const v1::Buffer& buffer = program.buffers(b);
    if (buffer.class_() == v1::EXTERNAL || TierOf(program, buffer) != tier) continue;
    if (buffer.lifetime() == v1::PERSISTENT) now[buffer.class_()] += buffer.bytes();
    if (buffer.lifetime() != v1::STEP || lives[b].begin < 0) continue;
    changes.emplace_back(lives[b].begin, buffer.bytes(), buffer.class_());
    changes.emplace_back(lives[b].end, -buffer.bytes(), buffer.class_());
  }
  std::sort(changes.begin(), changes.end());
  MemoryOverTime memory{.peak_bytes = Total(now)};
  memory.columns.push_back(now);
  for (size_t i = 0; i < changes.size();) {
    const double at = std::get<0>(changes[i]);
    const int column = std::clamp(static_cast<int>(at / seconds * columns), 0, columns - 1);
    memory.columns.resize(std::max<size_t>(memory.columns.size(), column + 1), now);
    // What takes the place of something at the same moment is not beside it.
    for (; i < changes.size() && std::get<0>(changes[i]) == at; ++i) {
      now[std::get<2>(changes[i])] += std::get<1>(changes[i]);
    }
    const int64_t total = Total(now);
    if (total > Total(memory.columns.back())) memory.columns.back() = now;
    if (total > memory.peak_bytes) {
      memory.peak_bytes = total;
      memory.peak_seconds = at;
    }
  }
  memory.columns.resize(columns, now);
  return memory;
}

}  // namespace terrace
