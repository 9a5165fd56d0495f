// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/memory_classes.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace terrace {
namespace {

struct Life {
  int first = -1, last = -1;  // instructions, in list order

  void Use(int instruction) {
    if (first < 0) first = instruction;
    last = instruction;
  }
};

std::vector<Life> Lives(const v1::Program& program, const v1::Sequence& sequence) {
  std::vector<Life> lives(program.buffers_size());
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    for (const v1::Operand& operand : instruction.operands()) {
      if (operand.access() != v1::ACCESS_UNSPECIFIED) lives[operand.buffer()].Use(i);
    }
    if (instruction.has_compute() &&
        instruction.compute().workspace().access() != v1::ACCESS_UNSPECIFIED) {
      lives[instruction.compute().workspace().buffer()].Use(i);
    }
  }
  return lives;
}

// The instruction at which the largest sum of step buffers lives.
int PeakInstruction(const v1::Program& program, const std::vector<Life>& lives, int instructions) {
  std::vector<int64_t> change(instructions + 1, 0);
  for (const v1::Buffer& buffer : program.buffers()) {
    const Life& life = lives[buffer.id()];
    if (buffer.lifetime() != v1::STEP || life.first < 0) continue;
    change[life.first] += buffer.bytes();
    change[life.last + 1] -= buffer.bytes();
  }
  int64_t live = 0, most = -1;
  int peak = 0;
  for (int i = 0; i < instructions; ++i) {
    live += change[i];
    if (live > most) most = live, peak = i;
  }
  return peak;
}

}  // namespace

std::vector<v1::ClassBytes> MemoryClasses(const v1::Program& program) {
  std::map<std::pair<uint32_t, uint32_t>, int64_t> bytes;  // (tier, class) -> bytes
  for (const v1::Arena& arena : program.arenas())
    bytes[{arena.tier(), v1::BUFFER_CLASS_UNSPECIFIED}] += arena.bytes();
  const auto count = [&](const v1::Buffer& buffer) {
    const uint32_t tier = program.arenas(buffer.arena()).tier();
    bytes[{tier, buffer.class_()}] += buffer.bytes();
    bytes[{tier, v1::BUFFER_CLASS_UNSPECIFIED}] -= buffer.bytes();
  };
  const auto train = std::find_if(program.sequences().begin(), program.sequences().end(),
                                  [](const v1::Sequence& s) { return s.name() == "train"; });
  std::vector<Life> lives(program.buffers_size());
  int peak = 0;
  if (train != program.sequences().end()) {
    lives = Lives(program, *train);
    peak = PeakInstruction(program, lives, train->instructions_size());
  }
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.class_() == v1::EXTERNAL) continue;
    const Life& life = lives[buffer.id()];
    const bool lives_at_peak = life.first >= 0 && life.first <= peak && peak <= life.last;
    if (buffer.lifetime() == v1::PERSISTENT || lives_at_peak) count(buffer);
  }
  std::vector<v1::ClassBytes> lines;
  for (const auto& [key, value] : bytes) {
    v1::ClassBytes& line = lines.emplace_back();
    line.set_tier(key.first);
    line.set_class_(key.second);
    line.set_bytes(value);
  }
  return lines;
}

}  // namespace terrace
