// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/memory_report.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/compiler/pack/liveness.h"
#include "coordinator/prepare/memory_peak.h"
#include "proto/program/arena_pages.h"
#include "proto/program/caching_need.h"
#include "proto/program/played_program.h"

namespace terrace {
namespace {

void AddLine(v1::Tier tier, v1::BufferClass cls, int64_t bytes, v1::StageMemory* memory) {
  if (bytes == 0) return;
  v1::MemoryLine* line = memory->add_lines();
  line->set_tier(tier);
  line->set_class_(cls);
  line->set_bytes(bytes);
}

void AddLargest(v1::Tier tier, const BytesByClass& most, v1::StageMemory* memory) {
  for (const auto& [cls, bytes] : most) {
    v1::MemoryLine* line = memory->add_largest();
    line->set_tier(tier);
    line->set_class_(cls);
    line->set_bytes(bytes);
  }
}

// `program` and those below have no loops.
void ReportArena(const v1::Program& program, const v1::Arena& arena, v1::StageMemory* memory) {
  BytesByClass bytes = PeakOf(program, arena.id()).bytes;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() == v1::PERSISTENT && buffer.arena() == arena.id())
      bytes[buffer.class_()] += buffer.bytes();
  }
  for (const auto& [cls, amount] : bytes) AddLine(arena.tier(), cls, amount, memory);
  AddLine(arena.tier(), v1::BUFFER_CLASS_UNSPECIFIED, memory->arena_bytes() - Total(bytes), memory);
}

int64_t LimitOf(const v1::Program& program, v1::Tier tier) {
  if (tier == v1::HOST) return program.host_limit_bytes();
  return tier == v1::NVME ? program.nvme_limit_bytes() : program.device_limit_bytes();
}

// "train 0123 matmul_grad, backward of layer 4".
std::string InstructionText(const PlayedProgram& played, const v1::Sequence& sequence,
                            int64_t position) {
  if (position < 0 || position >= sequence.instructions_size()) return "the end of the step";
  const auto at = static_cast<int>(position);
  return absl::StrFormat("%s %04d %s", sequence.name(),
                         played.PlayedAt(played.IndexOf(sequence), at).instruction,
                         sequence.instructions(at).text());
}

constexpr int kLargest = 8;

v1::Binding BindingOf(const v1::Program& original, const v1::Arena& arena) {
  v1::Binding binding;
  const PlayedProgram played(&original);
  const v1::Program& program = played.program();
  const SequencePeak peak = PeakOf(program, arena.id());
  const std::vector<Life> lives =
      peak.sequence == nullptr ? std::vector<Life>() : Liveness(program, *peak.sequence);
  if (peak.sequence != nullptr) {
    binding.set_instruction(InstructionText(played, *peak.sequence, peak.time));
  }
  std::vector<int> alive;
  for (int i = 0; i < program.buffers_size(); ++i) {
    const v1::Buffer& buffer = program.buffers(i);
    if (buffer.arena() != arena.id()) continue;
    const bool step = buffer.lifetime() == v1::STEP;
    if (step && (lives.empty() || lives[i].begin > peak.time || lives[i].end <= peak.time))
      continue;
    alive.push_back(i);
  }
  std::stable_sort(alive.begin(), alive.end(), [&](int a, int b) {
    return program.buffers(a).bytes() > program.buffers(b).bytes();
  });
  if (alive.size() > kLargest) alive.resize(kLargest);
  for (const int i : alive) {
    const v1::Buffer& buffer = program.buffers(i);
    v1::Binding::Holder* holder = binding.add_largest();
    holder->set_name(played.BufferOf(static_cast<uint32_t>(i)).name());
    holder->set_class_(buffer.class_());
    holder->set_bytes(buffer.bytes());
    holder->set_made_by(buffer.lifetime() == v1::STEP
                            ? InstructionText(played, *peak.sequence, lives[i].begin)
                            : "held for the whole job");
  }
  return binding;
}

// The most of each class at any moment, each at its own.
BytesByClass MaximaOf(const v1::Program& program, const v1::Arena& arena) {
  BytesByClass most;
  for (const v1::Sequence& sequence : program.sequences()) {
    for (const auto& [cls, bytes] : PeakOfSequence(program, sequence, arena.id()).most) {
      most[cls] = std::max(most[cls], bytes);
    }
  }
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() == v1::PERSISTENT && buffer.arena() == arena.id())
      most[buffer.class_()] += buffer.bytes();
  }
  if (arena.tier() == v1::DEVICE && program.external_bytes() > 0) {
    most[v1::EXTERNAL] = program.external_bytes();
  }
  return most;
}

v1::StageMemory ArenaMemory(const v1::Program& program, const v1::Program& played,
                            const v1::Arena& arena) {
  v1::StageMemory memory;
  memory.set_stage(program.stage());
  memory.set_tier(arena.tier());
  memory.set_limit_bytes(LimitOf(program, arena.tier()));
  memory.set_arena_bytes(ReservedBytesNeeded(program, arena.tier()));
  ReportArena(played, arena, &memory);
  memory.set_lower_bound_bytes(arena.lower_bound_bytes());
  memory.set_paged_bytes(AliasBytes(arena));
  if (arena.tier() == v1::DEVICE) {
    memory.set_external_bytes(program.external_bytes());
    AddLine(v1::DEVICE, v1::EXTERNAL, program.external_bytes(), &memory);
  }
  AddLargest(arena.tier(), MaximaOf(played, arena), &memory);
  return memory;
}

}  // namespace

std::vector<v1::StageMemory> ReportMemory(const v1::Program& program) {
  const PlayedProgram played(&program);
  std::vector<v1::StageMemory> memory;
  for (const v1::Arena& arena : program.arenas())
    memory.push_back(ArenaMemory(program, played.program(), arena));
  return memory;
}

v1::Binding ReportBinding(const Evaluated& evaluated, const TierLimits& limits,
                          int64_t device_memory_bytes) {
  const v1::Program* program = nullptr;
  const v1::Arena* arena = nullptr;
  std::pair<double, int64_t> most = {-1, -1};  // of the limit; bytes
  v1::Binding found;
  for (const v1::Program& one : evaluated.programs) {
    for (const v1::Arena& of : one.arenas()) {
      const bool device = of.tier() == v1::DEVICE;
      const int64_t limit = device                  ? device_memory_bytes
                            : of.tier() == v1::HOST ? limits.host_bytes
                                                    : limits.nvme_bytes;
      const int64_t bytes = BytesOf(one, of.tier());
      const double part = limit == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(limit);
      if (std::pair(part, device ? bytes : 0) <= most) continue;
      most = {part, device ? bytes : 0};
      program = &one;
      arena = &of;
      found.set_tier(of.tier());
      found.set_stage(one.stage());
      found.set_bytes(bytes);
      found.set_limit_bytes(limit);
    }
  }
  if (program == nullptr) return found;
  v1::Binding binding = BindingOf(*program, *arena);
  binding.MergeFrom(found);
  return binding;
}

}  // namespace terrace
