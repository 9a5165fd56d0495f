// SPDX-License-Identifier: Apache-2.0
#include "proto/program/caching_need.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/caching/segments.h"

namespace terrace {
namespace {

// Two do for training programs.
constexpr int kRoundsMax = 16;
// What a cache without a limit of its own may reserve.
constexpr int64_t kBeyondAllMemory = int64_t{1} << 60;

}  // namespace

std::vector<AllocationEvents> EventsOfSequences(const v1::Program& program) {
  std::vector<AllocationEvents> events;
  for (const v1::Sequence& sequence : program.sequences()) events.emplace_back(program, sequence);
  return events;
}

absl::Status SettleCache(const v1::Program& program, const std::vector<AllocationEvents>& events,
                         BlockCache* cache) {
  for (int round = 0; round < kRoundsMax; ++round) {
    const int64_t before = cache->statistics().reserved_bytes;
    for (size_t s = 0; s < events.size(); ++s) {
      const v1::Sequence& sequence = program.sequences(static_cast<int>(s));
      RETURN_IF_ERROR(ReplaySequence(program, sequence, events[s], cache));
    }
    if (cache->statistics().reserved_bytes == before) return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the caching allocator still reserves more after ", kRoundsMax,
                   " executions of everything; use layout.allocator planned"));
}

int64_t SegmentBytesNeeded(const v1::Program& program,
                           const std::vector<AllocationEvents>& events) {
  CountedSegments source;
  BlockCache cache(&source, {.policy = CachingPolicyOf(program)});
  if (!SettleCache(program, events, &cache).ok()) return kBeyondAllMemory;
  return cache.statistics().reserved_bytes;
}

int64_t SegmentBytesNeeded(const v1::Program& program) {
  return UsesCaching(program) ? SegmentBytesNeeded(program, EventsOfSequences(program)) : 0;
}

int64_t ReservedBytesNeeded(const v1::Program& program, v1::Tier tier) {
  int64_t bytes = tier == v1::DEVICE ? SegmentBytesNeeded(program) : 0;
  for (const v1::Arena& arena : program.arenas()) {
    if (arena.tier() == tier) bytes += arena.bytes();
  }
  return bytes;
}

}  // namespace terrace
