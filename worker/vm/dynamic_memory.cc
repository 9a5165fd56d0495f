// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/dynamic_memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/caching/policy.h"
#include "proto/program/caching_need.h"
#include "proto/program/loops.h"
#include "worker/memory/caching_segments.h"
#include "worker/memory/step_scope.h"

namespace terrace {
namespace {

constexpr int kWorkspace = -1;

int64_t PersistentBytes(const v1::Program& program) {
  int64_t bytes = 0;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() == v1::PERSISTENT && buffer.arena() == 0) bytes += buffer.bytes();
  }
  return bytes;
}

bool Trains(const v1::Sequence& sequence) { return sequence.name().rfind("train", 0) == 0; }

// Calls visit(operand index or kWorkspace, operand) for what an instruction names.
template <typename Visit>
void ForEachOperand(const v1::Instruction& instruction, Visit visit) {
  for (int i = 0; i < instruction.operands_size(); ++i) {
    if (instruction.operands(i).access() != v1::ACCESS_UNSPECIFIED)
      visit(i, instruction.operands(i));
  }
  const v1::Operand& workspace = instruction.compute().workspace();
  if (workspace.access() != v1::ACCESS_UNSPECIFIED) visit(kWorkspace, workspace);
}

}  // namespace

void DynamicMemory::Use::Set(std::byte* buffer) const {
  std::byte* const address = buffer == nullptr ? nullptr : buffer + offset;
  if (operand == kWorkspace) {
    instruction->context.workspace = address;
  } else {
    instruction->operands[operand].data = address;
  }
}

absl::StatusOr<std::unique_ptr<DynamicMemory>> DynamicMemory::Create(const v1::Program& program,
                                                                     DynamicMemoryOptions options) {
  if (HasLoops(program)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the program has loops, in which layout.allocator ", program.allocator(),
        " gives no memory to buffers; compile the job with layout.allocator: planned"));
  }
  std::vector<AllocationEvents> events = EventsOfSequences(program);
  if (options.limit_bytes == 0) options.limit_bytes = SegmentBytesNeeded(program, events);
  if (options.source == nullptr) options.source = std::make_unique<MappedSegments>(options.threads);
  std::unique_ptr<DynamicMemory> memory(
      new DynamicMemory(program, std::move(options), std::move(events)));
  RETURN_IF_ERROR(memory->Settle());
  return memory;
}

DynamicMemory::DynamicMemory(const v1::Program& program, DynamicMemoryOptions options,
                             std::vector<AllocationEvents> events)
    : program_(program),
      events_(std::move(events)),
      limit_bytes_(options.limit_bytes),
      persistent_bytes_(PersistentBytes(program)),
      source_(std::move(options.source)),
      sequences_(program.sequences_size()),
      cache_(source_.get(), {.policy = CachingPolicyOf(program),
                             .limit_bytes = limit_bytes_,
                             .release_when_full = false}),
      blocks_(program.buffers_size(), nullptr) {}

DynamicMemory::~DynamicMemory() {
  if (scratch_ != nullptr) source_->Release(scratch_);
}

absl::Status DynamicMemory::Settle() {
  absl::MutexLock lock(&mutex_);
  return SettleCache(program_, events_, &cache_);
}

void DynamicMemory::Bind(int sequence, PreparedSequence* prepared) {
  auto bound = std::make_unique<BoundSequence>(this, sequence);
  bound->uses.resize(program_.buffers_size());
  for (PreparedStream& stream : prepared->streams) {
    for (PreparedInstruction& instruction : stream.instructions) {
      ForEachOperand(*instruction.source, [&](int operand, const v1::Operand& named) {
        if (!IsDynamic(program_, program_.buffers(static_cast<int>(named.buffer())))) return;
        bound->uses[named.buffer()].push_back({&instruction, operand, named.offset()});
      });
    }
  }
  prepared->launcher = bound.get();
  sequences_[sequence] = std::move(bound);
}

// Each instruction's buffers lie one after the other from the start of `scratch`; the bytes of the
// largest of them.
int64_t DynamicMemory::PlaceForWarm(std::byte* scratch) {
  int64_t most = 0;
  for (const auto& sequence : sequences_) {
    if (sequence == nullptr) continue;
    std::map<const PreparedInstruction*, int64_t> taken;
    for (size_t buffer = 0; buffer < sequence->uses.size(); ++buffer) {
      const int64_t bytes =
          CachingPolicy::BlockBytes(program_.buffers(static_cast<int>(buffer)).bytes());
      const PreparedInstruction* last = nullptr;
      for (const Use& use : sequence->uses[buffer]) {
        int64_t& end = taken[use.instruction];
        if (use.instruction != last) end += bytes;  // several operands may lie in one buffer
        last = use.instruction;
        most = std::max(most, end);
        use.Set(scratch == nullptr ? nullptr : scratch + end - bytes);
      }
    }
  }
  return most;
}

absl::Status DynamicMemory::BeginWarm() {
  {
    absl::MutexLock lock(&mutex_);
    cache_.ReleaseCached();
  }
  const int64_t bytes = PlaceForWarm(nullptr);
  if (bytes == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(scratch_, source_->Reserve(bytes));
  PlaceForWarm(scratch_);
  return absl::OkStatus();
}

absl::Status DynamicMemory::EndWarm() {
  PlaceForWarm(nullptr);
  if (scratch_ != nullptr) source_->Release(std::exchange(scratch_, nullptr));
  return Settle();
}

void DynamicMemory::Begin(int sequence) {
  running_ = sequence;
  sequences_[sequence]->launched.store(0, std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  failure_ = absl::OkStatus();
  cache_.BeginStep();
  at_peak_ = cache_.statistics();
}

absl::Status DynamicMemory::LaunchUpTo(uint32_t id, BoundSequence* sequence) {
  // The allocator keeps its books on the heap.
  const LibraryScope library;
  const AllocationEvents& events = events_[sequence->index];
  absl::MutexLock lock(&mutex_);
  for (uint32_t next = sequence->launched.load(std::memory_order_relaxed);
       next <= id && failure_.ok(); ++next) {
    for (const AllocationEvent& event : events.At(next)) {
      failure_ = ApplyEvent(program_, events, event, &cache_, &blocks_);
      if (!failure_.ok()) break;
      if (event.kind != AllocationEvent::kAllocate) continue;
      for (const Use& use : sequence->uses[event.buffer]) use.Set(blocks_[event.buffer]);
      if (const CachingStatistics now = cache_.statistics();
          now.allocated_bytes > at_peak_.allocated_bytes) {
        at_peak_ = now;
      }
    }
    failure_ = AtInstruction(
        failure_, program_.sequences(sequence->index).instructions(static_cast<int>(next)));
    if (failure_.ok()) sequence->launched.store(next + 1, std::memory_order_release);
  }
  return failure_;
}

void DynamicMemory::End() {
  const AllocationEvents& events = events_[running_];
  absl::MutexLock lock(&mutex_);
  if (sequences_[running_]->launched.load() == events.instructions() && failure_.ok()) {
    for (const AllocationEvent& event : events.At(events.instructions()))
      failure_.Update(ApplyEvent(program_, events, event, &cache_, &blocks_));
  }
  for (std::byte*& block : blocks_) {
    if (block != nullptr) failure_.Update(cache_.Free(std::exchange(block, nullptr)));
  }
  at_peak_.step_peak_bytes = cache_.statistics().step_peak_bytes;
  if (Trains(program_.sequences(running_))) shown_ = at_peak_;
  running_ = -1;
}

int64_t DynamicMemory::reserved_bytes() const {
  absl::MutexLock lock(&mutex_);
  return cache_.statistics().reserved_bytes;
}

v1::AllocatorStats DynamicMemory::stats() const {
  absl::MutexLock lock(&mutex_);
  const CachingStatistics now = cache_.statistics();
  v1::AllocatorStats stats;
  stats.set_mode(program_.allocator());
  stats.set_allocated_bytes(persistent_bytes_ + shown_.allocated_bytes);
  stats.set_active_bytes(persistent_bytes_ + shown_.active_bytes);
  stats.set_requested_bytes(persistent_bytes_ + shown_.requested_bytes);
  stats.set_step_peak_bytes(persistent_bytes_ + shown_.step_peak_bytes);
  stats.set_reserved_bytes(program_.arenas(0).bytes() + now.reserved_bytes);
  stats.set_largest_free_block_bytes(shown_.largest_free_block_bytes);
  stats.set_retries(now.retries);
  stats.set_ooms(now.ooms);
  return stats;
}

}  // namespace terrace
