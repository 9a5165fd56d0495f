// SPDX-License-Identifier: Apache-2.0
#include "proto/report/live_memory.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/check/program_check.h"
#include "proto/program/arena_pages.h"
#include "proto/program/caching_need.h"
#include "proto/program/loops.h"
#include "proto/program/tiers.h"

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
  for (const v1::BackWait& wait : instruction.back_waits())
    valid &= static_cast<int>(wait.instruction()) < sequence.instructions_size();
  ForEachOperand(instruction, [&](const v1::Operand& operand) {
    const int64_t last = int64_t{operand.buffer()} + std::max<int64_t>(1, operand.slots()) - 1;
    valid &= last < program.buffers_size();
  });
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("instruction ", id, " of ", sequence.name(),
                                                 " names what the program does not have"));
}

// Of what is executed: a list of few iterations is far shorter.
constexpr int64_t kPlayedMost = int64_t{1} << 22;

absl::StatusOr<PlayedProgram> PlayedList(const v1::Program& program) {
  for (const v1::Sequence& sequence : program.sequences()) {
    for (int id = 0; id < sequence.instructions_size(); ++id)
      RETURN_IF_ERROR(CheckIndices(program, sequence, sequence.instructions(id), id));
  }
  if (!HasLoops(program)) return PlayedProgram(&program, 0);
  RETURN_IF_ERROR(CheckCanBeWrittenOut(program));
  const int64_t leave_out = IterationsToLeaveOut(program, IterationsToTellPositions(program));
  int64_t played = 0;
  for (const v1::Sequence& sequence : program.sequences()) {
    played += PlayedInstructions(sequence);
    for (const v1::Loop& loop : sequence.loops()) played -= leave_out * loop.count();
  }
  if (played > kPlayedMost) {
    return absl::InvalidArgumentError(absl::StrCat("the program repeats only after ", played,
                                                   " instructions, at most ", kPlayedMost));
  }
  return PlayedProgram(&program, leave_out);
}

bool InArena(const v1::Buffer& buffer) { return buffer.class_() != v1::EXTERNAL; }

bool Begins(const v1::Operand& operand) {
  return operand.access() == v1::WRITE || operand.access() == v1::UPDATE;
}

}  // namespace

int64_t Total(const ByClass& classes) {
  return std::accumulate(classes.begin(), classes.end(), int64_t{0});
}

std::string InstructionWords(const ExecutedInstruction& executed) {
  const v1::Instruction& instruction = *executed.instruction;
  std::string words = absl::StrCat(instruction.id(), " ", instruction.text());
  if (instruction.layer() >= 0) absl::StrAppend(&words, ", layer ", instruction.layer());
  if (executed.micro_batch >= 0) absl::StrAppend(&words, ", micro-batch ", executed.micro_batch);
  return words;
}

absl::StatusOr<LiveMemory> LiveMemory::Create(const v1::Program* program) {
  ASSIGN_OR_RETURN(PlayedProgram played, PlayedList(*program));
  LiveMemory memory(program, std::move(played));
  for (const v1::Sequence& sequence : program->sequences())
    memory.positions_.emplace_back(*program, sequence, memory.played_.left_out());
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
  const v1::Program& list = memory.played_.program();
  for (const v1::Sequence& sequence : list.sequences())
    memory.sequences_.push_back(Prepare(list, sequence));
  memory.segment_bytes_ = SegmentBytesNeeded(*program);
  return memory;
}

LiveMemory::SequenceUses LiveMemory::Prepare(const v1::Program& program,
                                             const v1::Sequence& sequence) {
  SequenceUses out;
  out.streams.resize(program.streams_size());
  out.first.assign(program.buffers_size(), -1);
  out.last.assign(program.buffers_size(), -1);
  out.made_by.assign(program.buffers_size(), -1);
  for (int id = 0; id < sequence.instructions_size(); ++id) {
    const v1::Instruction& instruction = sequence.instructions(id);
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

ExecutedInstruction LiveMemory::ExecutedAt(int sequence, int32_t instruction,
                                           const std::vector<int64_t>& skipped) const {
  const WrittenOut::Played played = played_.PlayedAt(sequence, instruction);
  const v1::Sequence& original = program_->sequences(sequence);
  const v1::Instruction& executed = played_.program().sequences(sequence).instructions(instruction);
  int micro_batch = executed.micro_batch();
  for (int l = 0; l < static_cast<int>(skipped.size()) && micro_batch >= 0; ++l) {
    const v1::Loop& loop = original.loops(l);
    const auto place = static_cast<int64_t>(played.instruction) - loop.first();
    if (place >= 0 && place < loop.count())
      micro_batch += static_cast<int>(skipped[l] * loop.micro_batches());
  }
  return {&original.instructions(played.instruction), micro_batch};
}

uint32_t LiveMemory::PlaceOf(int sequence, uint32_t instruction) const {
  if (played_.written() == nullptr) return instruction;
  std::vector<uint32_t> places;
  const std::vector<WrittenOut::Played>& played = played_.written()->played[sequence];
  for (uint32_t i = 0; i < played.size(); ++i) {
    if (played[i].instruction == static_cast<int>(instruction)) places.push_back(i);
  }
  return places[places.size() / 2];
}

int32_t LiveMemory::Next(int sequence, const LoopPositions::Place& place, size_t stream) const {
  const std::vector<uint32_t>& ids = sequences_[sequence].streams[stream];
  const int32_t at = place.finished[stream];
  if (at < 0 || at >= static_cast<int64_t>(ids.size())) return -1;
  return static_cast<int32_t>(ids[at]);
}

// The next instruction of a stream has begun when all that it waits for has finished.
std::vector<int32_t> LiveMemory::Begun(int sequence, const LoopPositions::Place& place) const {
  const SequenceUses& uses = sequences_[sequence];
  const v1::Sequence& list = played_.program().sequences(sequence);
  const auto finished = [&](uint32_t id) {
    const v1::Instruction& instruction = list.instructions(static_cast<int>(id));
    return place.finished[instruction.stream()] > uses.positions[id];
  };
  std::vector<int32_t> begun = place.finished;
  for (size_t stream = 0; stream < begun.size(); ++stream) {
    const int32_t next = Next(sequence, place, stream);
    if (next < 0) continue;
    const auto& waits = list.instructions(next).waits();
    if (std::all_of(waits.begin(), waits.end(), finished)) ++begun[stream];
  }
  return begun;
}

std::vector<uint32_t> LiveMemory::LiveAt(int sequence, const LoopPositions::Place& place) const {
  const std::vector<int32_t> begun = Begun(sequence, place);
  const std::vector<Use>& uses = sequences_[sequence].uses;
  std::vector<uint32_t> live;
  for (size_t i = 0; i < uses.size();) {
    const uint32_t buffer = uses[i].buffer;
    bool has_begun = false, is_needed = false;
    for (; i < uses.size() && uses[i].buffer == buffer; ++i) {
      has_begun |= begun[uses[i].stream] > uses[i].first;
      is_needed |= place.finished[uses[i].stream] <= uses[i].last;
    }
    if (has_begun && is_needed) live.push_back(buffer);
  }
  return live;
}

ByTierAndClass LiveMemory::At(const ProgramPosition& position) const {
  ByTierAndClass bytes = persistent_bytes_;
  if (!Matches(position)) return bytes;
  for (const uint32_t id :
       LiveAt(position.sequence, positions_[position.sequence].Of(position.finished))) {
    const v1::Buffer& buffer = played_.BufferOf(id);
    bytes[TierOf(*program_, buffer)][buffer.class_()] += buffer.bytes();
  }
  return bytes;
}

LiveBuffer LiveMemory::Describe(uint32_t id, int sequence,
                                const std::vector<int64_t>& skipped) const {
  const v1::Buffer& buffer = played_.BufferOf(id);
  LiveBuffer live{.buffer = &buffer, .tier = TierOf(*program_, buffer), .made_by = {}};
  if (sequence < 0 || buffer.lifetime() == v1::PERSISTENT) return live;
  const int32_t made_by = sequences_[sequence].made_by[id];
  if (made_by >= 0) live.made_by = ExecutedAt(sequence, made_by, skipped);
  return live;
}

std::vector<LiveBuffer> LiveMemory::Largest(std::vector<uint32_t> buffers, int sequence,
                                            const std::vector<int64_t>& skipped,
                                            size_t count) const {
  const size_t shown = std::min(count, buffers.size());
  std::partial_sort(buffers.begin(), buffers.begin() + static_cast<ptrdiff_t>(shown), buffers.end(),
                    [this](uint32_t a, uint32_t b) {
                      const int64_t bytes_a = played_.BufferOf(a).bytes();
                      const int64_t bytes_b = played_.BufferOf(b).bytes();
                      return bytes_a != bytes_b ? bytes_a > bytes_b : a < b;
                    });
  std::vector<LiveBuffer> largest;
  for (size_t i = 0; i < shown; ++i) largest.push_back(Describe(buffers[i], sequence, skipped));
  return largest;
}

std::vector<LiveBuffer> LiveMemory::LargestAt(const ProgramPosition& position, size_t count) const {
  std::vector<uint32_t> buffers = persistent_;
  if (!Matches(position)) return Largest(std::move(buffers), -1, {}, count);
  const LoopPositions::Place place = positions_[position.sequence].Of(position.finished);
  const std::vector<uint32_t> live = LiveAt(position.sequence, place);
  buffers.insert(buffers.end(), live.begin(), live.end());
  return Largest(std::move(buffers), position.sequence, place.skipped, count);
}

int64_t LiveMemory::LargestFree(const ProgramPosition& position, v1::Tier tier) const {
  std::vector<uint32_t> live = persistent_;
  if (Matches(position)) {
    const std::vector<uint32_t> step =
        LiveAt(position.sequence, positions_[position.sequence].Of(position.finished));
    live.insert(live.end(), step.begin(), step.end());
  }
  const auto arena = std::find_if(program_->arenas().begin(), program_->arenas().end(),
                                  [&](const v1::Arena& one) { return one.tier() == tier; });
  if (arena == program_->arenas().end()) return 0;
  const ArenaPages pages(*arena);
  std::vector<std::pair<int64_t, int64_t>> ranges;  // of memory, [begin, end)
  for (const uint32_t id : live) {
    const v1::Buffer& buffer = played_.BufferOf(id);
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

ExecutedInstruction LiveMemory::Current(const ProgramPosition& position, size_t stream) const {
  if (!Matches(position) || stream >= position.finished.size()) return {};
  const LoopPositions::Place place = positions_[position.sequence].Of(position.finished);
  const int32_t next = Next(position.sequence, place, stream);
  if (next < 0) return {};
  return ExecutedAt(position.sequence, next, place.skipped);
}

bool LiveMemory::IsUnderWay(const ProgramPosition& position, size_t stream) const {
  if (!Matches(position) || stream >= position.finished.size()) return false;
  const LoopPositions::Place place = positions_[position.sequence].Of(position.finished);
  return Begun(position.sequence, place)[stream] > place.finished[stream];
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
      const v1::Buffer& buffer = played_.BufferOf(id);
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
    for (const v1::Buffer& buffer : played_.program().buffers()) {
      if (!InArena(buffer) || TierOf(*program_, buffer) != tier) continue;
      const auto at = static_cast<int64_t>(peak.instruction);
      const bool step = uses.first[buffer.id()] >= 0 && uses.first[buffer.id()] <= at &&
                        at <= uses.last[buffer.id()];
      if (buffer.lifetime() == v1::PERSISTENT || step) live.push_back(buffer.id());
    }
    peak.largest = Largest(std::move(live), sequence, {}, largest_max);
  }
}

}  // namespace terrace
