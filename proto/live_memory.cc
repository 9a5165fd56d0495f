// SPDX-License-Identifier: Apache-2.0
#include "proto/live_memory.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/arena_pages.h"
#include "proto/caching_need.h"
#include "proto/tiers.h"

namespace terrace {
namespace {

// Calls `visit(operand)` for the operands and the workspace.
template <typename Visit>
void ForEachOperand(const v1::Instruction& instruction, Visit visit) {
  for (const v1::Operand& operand : instruction.operands()) {
    if (operand.access() != v1::ACCESS_UNSPECIFIED) visit(operand);
  }
  const v1::Operand& workspace = instruction.compute().workspace();
  if (workspace.access() != v1::ACCESS_UNSPECIFIED) visit(workspace);
}

absl::Status CheckIndices(const v1::Program& program, const v1::Sequence& sequence,
                          const v1::Instruction& instruction, int id) {
  bool valid = static_cast<int>(instruction.id()) == id &&
               static_cast<int>(instruction.stream()) < program.streams_size();
  for (const uint32_t wait : instruction.waits()) valid &= static_cast<int>(wait) < id;
  ForEachOperand(instruction, [&](const v1::Operand& operand) {
    valid &= static_cast<int>(operand.buffer()) < program.buffers_size();
  });
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("instruction ", id, " of ", sequence.name(),
                                                 " names what the program does not have"));
}

bool InArena(const v1::Buffer& buffer) { return buffer.class_() != v1::EXTERNAL; }

bool Begins(const v1::Operand& operand) {
  return operand.access() == v1::WRITE || operand.access() == v1::UPDATE;
}

}  // namespace

int64_t Total(const ByClass& classes) {
  return std::accumulate(classes.begin(), classes.end(), int64_t{0});
}

std::string InstructionWords(const v1::Instruction& instruction) {
  std::string words = absl::StrCat(instruction.id(), " ", instruction.text());
  if (instruction.layer() >= 0) absl::StrAppend(&words, ", layer ", instruction.layer());
  if (instruction.micro_batch() >= 0)
    absl::StrAppend(&words, ", micro-batch ", instruction.micro_batch());
  return words;
}

absl::StatusOr<LiveMemory> LiveMemory::Create(const v1::Program* program) {
  LiveMemory memory(program);
  for (const v1::Arena& arena : program->arenas()) {
    if (!v1::Tier_IsValid(arena.tier())) {
      return absl::InvalidArgumentError("an arena of the program lies on an unknown tier");
    }
  }
  for (int id = 0; id < program->buffers_size(); ++id) {
    const v1::Buffer& buffer = program->buffers(id);
    const bool placed =
        !InArena(buffer) || static_cast<int>(buffer.arena()) < program->arenas_size();
    if (static_cast<int>(buffer.id()) != id || !placed ||
        !v1::BufferClass_IsValid(buffer.class_())) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer ", id, " (", buffer.name(), ") has no place in the program"));
    }
    if (buffer.lifetime() != v1::PERSISTENT || !InArena(buffer)) continue;
    memory.persistent_.push_back(buffer.id());
    memory.persistent_bytes_[TierOf(*program, buffer)][buffer.class_()] += buffer.bytes();
  }
  for (const v1::Sequence& sequence : program->sequences()) {
    ASSIGN_OR_RETURN(SequenceUses uses, Prepare(*program, sequence));
    memory.sequences_.push_back(std::move(uses));
  }
  memory.segment_bytes_ = SegmentBytesNeeded(*program);
  return memory;
}

absl::StatusOr<LiveMemory::SequenceUses> LiveMemory::Prepare(const v1::Program& program,
                                                             const v1::Sequence& sequence) {
  SequenceUses out;
  out.streams.resize(program.streams_size());
  out.first.assign(program.buffers_size(), -1);
  out.last.assign(program.buffers_size(), -1);
  out.made_by.assign(program.buffers_size(), -1);
  for (int id = 0; id < sequence.instructions_size(); ++id) {
    const v1::Instruction& instruction = sequence.instructions(id);
    RETURN_IF_ERROR(CheckIndices(program, sequence, instruction, id));
    std::vector<uint32_t>& stream = out.streams[instruction.stream()];
    const auto position = static_cast<int32_t>(stream.size());
    stream.push_back(static_cast<uint32_t>(id));
    out.positions.push_back(position);
    ForEachOperand(instruction, [&](const v1::Operand& operand) {
      const uint32_t buffer = operand.buffer();
      if (out.first[buffer] < 0) out.first[buffer] = id;
      out.last[buffer] = id;
      if (out.made_by[buffer] < 0 && Begins(operand)) out.made_by[buffer] = id;
      const v1::Buffer& described = program.buffers(static_cast<int>(buffer));
      if (described.lifetime() != v1::STEP || !InArena(described)) return;
      out.uses.push_back({buffer, instruction.stream(), position, position});
    });
  }
  // One use a buffer and stream: the sort keeps positions in order.
  std::stable_sort(out.uses.begin(), out.uses.end(), [](const Use& a, const Use& b) {
    return std::pair(a.buffer, a.stream) < std::pair(b.buffer, b.stream);
  });
  size_t kept = 0;
  for (const Use& use : out.uses) {
    Use* before = kept == 0 ? nullptr : &out.uses[kept - 1];
    if (before != nullptr && before->buffer == use.buffer && before->stream == use.stream) {
      before->last = use.last;
    } else {
      out.uses[kept++] = use;
    }
  }
  out.uses.resize(kept);
  out.uses.shrink_to_fit();
  return out;
}

std::array<int64_t, v1::Tier_ARRAYSIZE> LiveMemory::ArenaBytes() const {
  std::array<int64_t, v1::Tier_ARRAYSIZE> bytes{};
  for (const v1::Arena& arena : program_->arenas()) bytes[arena.tier()] += arena.bytes();
  bytes[v1::DEVICE] += segment_bytes_;
  return bytes;
}

bool LiveMemory::Matches(const ProgramPosition& position) const {
  return position.sequence >= 0 && position.sequence < static_cast<int>(sequences_.size()) &&
         position.finished.size() == static_cast<size_t>(program_->streams_size());
}

// The next instruction of a stream has begun when all that it waits for has finished.
std::vector<int32_t> LiveMemory::Begun(const ProgramPosition& position) const {
  const SequenceUses& sequence = sequences_[position.sequence];
  const auto finished = [&](uint32_t id) {
    const v1::Instruction& instruction =
        program_->sequences(position.sequence).instructions(static_cast<int>(id));
    return position.finished[instruction.stream()] > sequence.positions[id];
  };
  std::vector<int32_t> begun(position.finished.begin(), position.finished.end());
  for (size_t stream = 0; stream < begun.size(); ++stream) {
    const v1::Instruction* next = Current(position, stream);
    if (next != nullptr && std::all_of(next->waits().begin(), next->waits().end(), finished))
      ++begun[stream];
  }
  return begun;
}

std::vector<uint32_t> LiveMemory::LiveAt(const ProgramPosition& position) const {
  const std::vector<int32_t> begun = Begun(position);
  const std::vector<Use>& uses = sequences_[position.sequence].uses;
  std::vector<uint32_t> live;
  for (size_t i = 0; i < uses.size();) {
    const uint32_t buffer = uses[i].buffer;
    bool has_begun = false, is_needed = false;
    for (; i < uses.size() && uses[i].buffer == buffer; ++i) {
      has_begun |= begun[uses[i].stream] > uses[i].first;
      is_needed |= position.finished[uses[i].stream] <= uses[i].last;
    }
    if (has_begun && is_needed) live.push_back(buffer);
  }
  return live;
}

ByTierAndClass LiveMemory::At(const ProgramPosition& position) const {
  ByTierAndClass bytes = persistent_bytes_;
  if (!Matches(position)) return bytes;
  for (const uint32_t id : LiveAt(position)) {
    const v1::Buffer& buffer = program_->buffers(static_cast<int>(id));
    bytes[TierOf(*program_, buffer)][buffer.class_()] += buffer.bytes();
  }
  return bytes;
}

LiveBuffer LiveMemory::Describe(uint32_t id, int sequence) const {
  const v1::Buffer& buffer = program_->buffers(static_cast<int>(id));
  LiveBuffer live{.buffer = &buffer, .tier = TierOf(*program_, buffer)};
  if (sequence < 0 || buffer.lifetime() == v1::PERSISTENT) return live;
  const int32_t made_by = sequences_[sequence].made_by[id];
  if (made_by >= 0) live.made_by = &program_->sequences(sequence).instructions(made_by);
  return live;
}

std::vector<LiveBuffer> LiveMemory::Largest(std::vector<uint32_t> buffers, int sequence,
                                            size_t count) const {
  const size_t shown = std::min(count, buffers.size());
  std::partial_sort(buffers.begin(), buffers.begin() + static_cast<ptrdiff_t>(shown), buffers.end(),
                    [this](uint32_t a, uint32_t b) {
                      const int64_t bytes_a = program_->buffers(static_cast<int>(a)).bytes();
                      const int64_t bytes_b = program_->buffers(static_cast<int>(b)).bytes();
                      return bytes_a != bytes_b ? bytes_a > bytes_b : a < b;
                    });
  std::vector<LiveBuffer> largest;
  for (size_t i = 0; i < shown; ++i) largest.push_back(Describe(buffers[i], sequence));
  return largest;
}

std::vector<LiveBuffer> LiveMemory::LargestAt(const ProgramPosition& position, size_t count) const {
  std::vector<uint32_t> buffers = persistent_;
  const bool running = Matches(position);
  if (running) {
    const std::vector<uint32_t> live = LiveAt(position);
    buffers.insert(buffers.end(), live.begin(), live.end());
  }
  return Largest(std::move(buffers), running ? position.sequence : -1, count);
}

int64_t LiveMemory::LargestFree(const ProgramPosition& position, v1::Tier tier) const {
  std::vector<uint32_t> live = persistent_;
  if (Matches(position)) {
    const std::vector<uint32_t> step = LiveAt(position);
    live.insert(live.end(), step.begin(), step.end());
  }
  const auto arena = std::find_if(program_->arenas().begin(), program_->arenas().end(),
                                  [&](const v1::Arena& one) { return one.tier() == tier; });
  if (arena == program_->arenas().end()) return 0;
  const ArenaPages pages(*arena);
  std::vector<std::pair<int64_t, int64_t>> ranges;  // of memory, [begin, end)
  for (const uint32_t id : live) {
    const v1::Buffer& buffer = program_->buffers(static_cast<int>(id));
    if (buffer.arena() != arena->id()) continue;
    pages.ForEachRange(buffer.offset(), buffer.offset() + buffer.bytes(),
                       [&](int64_t begin, int64_t end) { ranges.emplace_back(begin, end); });
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t largest = 0, end = 0;
  for (const auto& [first, last] : ranges) {
    largest = std::max(largest, first - end);
    end = std::max(end, last);
  }
  return std::max(largest, ArenaBytes()[tier] - end);
}

const v1::Instruction* LiveMemory::Current(const ProgramPosition& position, size_t stream) const {
  if (!Matches(position) || stream >= position.finished.size()) return nullptr;
  const std::vector<uint32_t>& ids = sequences_[position.sequence].streams[stream];
  const int32_t at = position.finished[stream];
  if (at < 0 || at >= static_cast<int64_t>(ids.size())) return nullptr;
  return &program_->sequences(position.sequence).instructions(static_cast<int>(ids[at]));
}

MemoryTimeline LiveMemory::Timeline(int sequence, size_t points_max, size_t largest_max) const {
  const SequenceUses& uses = sequences_[sequence];
  const size_t instructions = uses.positions.size();
  // Step buffers by the instruction that begins and the one that ends their life.
  std::vector<std::vector<uint32_t>> begins(instructions), ends(instructions);
  for (size_t i = 0; i < uses.uses.size(); ++i) {
    const uint32_t id = uses.uses[i].buffer;
    if (i > 0 && uses.uses[i - 1].buffer == id) continue;
    begins[uses.first[id]].push_back(id);
    ends[uses.last[id]].push_back(id);
  }
  MemoryTimeline timeline;
  ByTierAndClass now = persistent_bytes_;
  const auto change = [&](const std::vector<uint32_t>& buffers, int sign) {
    for (const uint32_t id : buffers) {
      const v1::Buffer& buffer = program_->buffers(static_cast<int>(id));
      now[TierOf(*program_, buffer)][buffer.class_()] += sign * buffer.bytes();
    }
  };
  const size_t per_point = std::max<size_t>(1, (instructions + points_max - 1) / points_max);
  for (size_t i = 0; i < instructions; ++i) {
    change(begins[i], +1);
    if (i % per_point == 0) timeline.points.push_back({static_cast<uint32_t>(i), now});
    ByTierAndClass& most = timeline.points.back().bytes;
    for (size_t tier = 0; tier < now.size(); ++tier) {
      const int64_t total = Total(now[tier]);
      if (total > Total(most[tier])) most[tier] = now[tier];
      if (total > timeline.peaks[tier].bytes)
        timeline.peaks[tier] = {total, static_cast<uint32_t>(i), {}};
    }
    change(ends[i], -1);
  }
  AddPeaks(sequence, largest_max, &timeline);
  return timeline;
}

void LiveMemory::AddPeaks(int sequence, size_t largest_max, MemoryTimeline* timeline) const {
  const SequenceUses& uses = sequences_[sequence];
  for (int tier = 0; tier < v1::Tier_ARRAYSIZE; ++tier) {
    MemoryTimeline::Peak& peak = timeline->peaks[tier];
    if (peak.bytes == 0) continue;
    std::vector<uint32_t> live;
    for (const v1::Buffer& buffer : program_->buffers()) {
      if (!InArena(buffer) || TierOf(*program_, buffer) != tier) continue;
      const auto at = static_cast<int64_t>(peak.instruction);
      const bool step = uses.first[buffer.id()] >= 0 && uses.first[buffer.id()] <= at &&
                        at <= uses.last[buffer.id()];
      if (buffer.lifetime() == v1::PERSISTENT || step) live.push_back(buffer.id());
    }
    peak.largest = Largest(std::move(live), sequence, largest_max);
  }
}

}  // namespace terrace
