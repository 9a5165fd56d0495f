// When the step buffers of a program in caching mode get memory and give it back, in the order of a
// host that launches instructions one after the other, in list order. With it every choice of the
// allocator is a function of the program alone, however fast the streams are.
//
// A buffer gets memory when the first instruction that uses it is launched, from the pool of that
// one's stream. Where all uses are known to be over when that stream goes on, it is freed at the
// last; otherwise it is retired there and freed at the first later instruction of its own stream
// that waits, directly or through others, for all uses elsewhere; at the sequence's end if there is
// none. A buffer that some stream may touch before its first use there knows of the others keeps
// its memory throughout.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "proto/caching/cache.h"
#include "proto/caching/policy.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Whether the program's step buffers on the device get memory while it runs: allocator "caching" or
// "expandable".
bool UsesCaching(const v1::Program& program);
// How the allocator of such a program cuts: with segments that expand, or of fixed sizes.
CachingPolicy CachingPolicyOf(const v1::Program& program);
// Whether this one does. REQUIRES: its arena exists.
bool IsDynamic(const v1::Program& program, const v1::Buffer& buffer);

struct AllocationEvent {
  enum Kind : uint8_t { kAllocate, kRetire, kFree } kind = kAllocate;
  uint32_t buffer = 0;
};

// Of one sequence.
class AllocationEvents {
 public:
  // REQUIRES: indices in the program are valid, waits name earlier instructions.
  AllocationEvents(const v1::Program& program, const v1::Sequence& sequence);

  // When the instruction is launched, in this order. REQUIRES: id <= instructions(); that one is
  // the end of the sequence, when all streams have finished.
  std::span<const AllocationEvent> At(uint32_t id) const {
    return std::span(events_).subspan(begin_[id], begin_[id + 1] - begin_[id]);
  }
  uint32_t instructions() const { return static_cast<uint32_t>(begin_.size()) - 2; }
  // Whose pool serves the buffer.
  uint32_t stream(uint32_t buffer) const { return streams_[buffer]; }

 private:
  std::vector<AllocationEvent> events_;
  std::vector<size_t> begin_;  // by instruction, then those of the end, then the end of the list
  std::vector<uint32_t> streams_;  // by buffer
};

// Held blocks by buffer; null: none.
using BlocksOfBuffers = std::vector<std::byte*>;

// Carries out one event. What the cache says of an allocation, with the buffer's name.
absl::Status ApplyEvent(const v1::Program& program, const AllocationEvents& events,
                        const AllocationEvent& event, BlockCache* cache, BlocksOfBuffers* blocks);

// Launches a whole sequence without running anything. After a failure the cache holds nothing.
// `look`, if given, is called after each event.
using AfterEvent = std::function<void(uint32_t instruction, const AllocationEvent& event,
                                      const BlocksOfBuffers& blocks)>;
absl::Status ReplaySequence(const v1::Program& program, const v1::Sequence& sequence,
                            const AllocationEvents& events, BlockCache* cache,
                            const AfterEvent& look = nullptr);

// "instruction 17 (mlp up): <problem>"
absl::Status AtInstruction(const absl::Status& status, const v1::Instruction& instruction);

}  // namespace terrace
