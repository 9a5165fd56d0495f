// How many bytes the caching allocator reserves for a program beside its arena: what a plan
// promises, what a rank reserves before its first step, what the watchers show.
//
// All sequences are replayed in the order of the program until a whole round reserves nothing more.
// Between sequences nothing is held, so what serves a sequence depends on the segments alone, and
// each has just got by with these: from then on a run in any order reserves nothing more. The
// prediction is exact, and no step of a job that was admitted can run out.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/caching/cache.h"
#include "proto/program/allocation_events.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// By index in Program.sequences. REQUIRES: as AllocationEvents.
std::vector<AllocationEvents> EventsOfSequences(const v1::Program& program);

// Replays rounds of all sequences until nothing more is reserved. RESOURCE_EXHAUSTED with the
// instruction and the buffer when the cache or its source has too little.
absl::Status SettleCache(const v1::Program& program, const std::vector<AllocationEvents>& events,
                         BlockCache* cache);

// Bytes of segments; 0 in planned mode, 2^60 when no memory is enough. REQUIRES: as
// AllocationEvents.
int64_t SegmentBytesNeeded(const v1::Program& program);
int64_t SegmentBytesNeeded(const v1::Program& program, const std::vector<AllocationEvents>& events);

// What a rank reserves on the tier: its arena and, on the device, segments.
int64_t ReservedBytesNeeded(const v1::Program& program, v1::Tier tier);

}  // namespace terrace
