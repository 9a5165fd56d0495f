// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/memory_classes.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "proto/program/arena_pages.h"
#include "proto/program/caching_need.h"
#include "proto/program/played_program.h"
#include "proto/program/tiers.h"

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

// Who lives at the peak of each arena. The program has no loops.
class PeakOfTrain {
 public:
  explicit PeakOfTrain(const v1::Program& program) : lives_(program.buffers_size()) {
    const auto train = std::find_if(program.sequences().begin(), program.sequences().end(),
                                    [](const v1::Sequence& s) { return s.name() == "train"; });
    peaks_.resize(program.arenas_size(), 0);
    if (train == program.sequences().end()) return;
    lives_ = Lives(program, *train);
    for (int arena = 0; arena < program.arenas_size(); ++arena)
      peaks_[arena] = PeakInstruction(program, arena, train->instructions_size());
  }

  // At the peak of its own arena.
  bool IsLive(const v1::Buffer& buffer) const {
    if (buffer.class_() == v1::EXTERNAL) return false;
    const Life& life = lives_[buffer.id()];
    const int peak = peaks_[buffer.arena()];
    return buffer.lifetime() == v1::PERSISTENT ||
           (life.first >= 0 && life.first <= peak && peak <= life.last);
  }

 private:
  // At which the largest sum of step buffers of the arena lives.
  int PeakInstruction(const v1::Program& program, int arena, int instructions) const {
    std::vector<int64_t> change(instructions + 1, 0);
    for (const v1::Buffer& buffer : program.buffers()) {
      const Life& life = lives_[buffer.id()];
      if (static_cast<int>(buffer.arena()) != arena || buffer.lifetime() != v1::STEP ||
          life.first < 0) {
        continue;
      }
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

  std::vector<Life> lives_;  // by buffer
  std::vector<int> peaks_;   // instructions, by arena
};

}  // namespace

std::vector<v1::ClassBytes> MemoryClasses(const v1::Program& program) {
  const PlayedProgram played(&program);
  const PeakOfTrain peak(played.program());
  std::map<std::pair<uint32_t, uint32_t>, int64_t> bytes;  // (tier, class) -> bytes
  for (const v1::Arena& arena : program.arenas()) {
    bytes[{arena.tier(), v1::BUFFER_CLASS_UNSPECIFIED}] +=
        ReservedBytesNeeded(program, arena.tier());
  }
  for (const v1::Buffer& buffer : played.program().buffers()) {
    if (!peak.IsLive(buffer)) continue;
    const uint32_t tier = TierOf(program, buffer);
    bytes[{tier, buffer.class_()}] += buffer.bytes();
    bytes[{tier, v1::BUFFER_CLASS_UNSPECIFIED}] -= buffer.bytes();
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

v1::AllocatorStats PlannedStats(const v1::Program& program) {
  v1::AllocatorStats stats;
  stats.set_mode("planned");
  if (program.arenas().empty()) return stats;
  const PlayedProgram played(&program);
  const PeakOfTrain peak(played.program());
  const ArenaPages pages(program.arenas(0));
  std::vector<std::pair<int64_t, int64_t>> blocks;  // of memory: first byte and end
  int64_t live = 0;
  for (const v1::Buffer& buffer : played.program().buffers()) {
    if (buffer.arena() != 0 || !peak.IsLive(buffer)) continue;
    live += buffer.bytes();
    pages.ForEachRange(buffer.offset(), buffer.offset() + buffer.bytes(),
                       [&](int64_t begin, int64_t end) { blocks.emplace_back(begin, end); });
  }
  const int64_t reserved = program.arenas(0).bytes();
  blocks.emplace_back(reserved, reserved);
  std::sort(blocks.begin(), blocks.end());
  int64_t largest_free = 0, end = 0;
  for (const auto& [begin, block_end] : blocks) {
    largest_free = std::max(largest_free, begin - end);
    end = std::max(end, block_end);
  }
  stats.set_allocated_bytes(live);
  stats.set_active_bytes(live);
  stats.set_requested_bytes(live);
  stats.set_step_peak_bytes(live);
  stats.set_reserved_bytes(reserved);
  stats.set_largest_free_block_bytes(largest_free);
  return stats;
}

}  // namespace terrace
