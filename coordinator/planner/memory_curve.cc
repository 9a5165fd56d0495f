// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/memory_curve.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace terrace {
namespace {

struct Life {
  double begin = std::numeric_limits<double>::infinity();
  double end = -1;
};

std::vector<Life> Lives(const v1::Program& program, const v1::Sequence& sequence,
                        const std::vector<RunInstruction>& run) {
  std::vector<Life> lives(program.buffers_size());
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    const auto touch = [&](const v1::Operand& operand) {
      if (operand.access() == v1::ACCESS_UNSPECIFIED || operand.buffer() >= lives.size()) return;
      Life& life = lives[operand.buffer()];
      life.begin = std::min(life.begin, run[i].start_seconds);
      life.end = std::max(life.end, run[i].end_seconds);
    };
    for (const v1::Operand& operand : instruction.operands()) touch(operand);
    if (instruction.compute().has_workspace()) touch(instruction.compute().workspace());
  }
  return lives;
}

bool OnDevice(const v1::Program& program, const v1::Buffer& buffer) {
  return buffer.arena() < static_cast<uint32_t>(program.arenas_size()) &&
         program.arenas(buffer.arena()).tier() == v1::DEVICE;
}

}  // namespace

std::vector<MemoryPoint> MemoryCurve(const v1::Program& program, const v1::Sequence& sequence,
                                     const std::vector<RunInstruction>& run) {
  const std::vector<Life> lives = Lives(program, sequence, run);
  // Sorted by time; at one time releases (negative) come before what takes their place.
  std::vector<std::pair<double, int64_t>> changes;
  std::vector<MemoryPoint> curve(1);
  for (int b = 0; b < program.buffers_size(); ++b) {
    const v1::Buffer& buffer = program.buffers(b);
    if (!OnDevice(program, buffer)) continue;
    if (buffer.lifetime() == v1::PERSISTENT) curve[0].bytes += buffer.bytes();
    if (buffer.lifetime() != v1::STEP || lives[b].end < 0) continue;
    changes.emplace_back(lives[b].begin, buffer.bytes());
    changes.emplace_back(lives[b].end, -buffer.bytes());
  }
  std::sort(changes.begin(), changes.end());
  for (const auto& [seconds, bytes] : changes) {
    const int64_t now = curve.back().bytes + bytes;
    if (curve.back().seconds == seconds) {
      curve.back().bytes = now;
    } else {
      curve.push_back({seconds, now});
    }
  }
  return curve;
}

}  // namespace terrace
