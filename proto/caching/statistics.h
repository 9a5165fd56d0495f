// What a caching allocator counts, under the names that jobs report (AllocatorStats). Bytes are of
// blocks as cut, except requested_bytes.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace {

struct CachingStatistics {
  int64_t allocated_bytes = 0;  // in blocks that their owner holds
  int64_t active_bytes = 0;     // those and the retired ones, which streams still use
  int64_t reserved_bytes = 0;   // in segments
  int64_t requested_bytes = 0;  // asked for, of the allocated ones
  int64_t largest_free_block_bytes = 0;
  int64_t step_peak_bytes = 0;  // largest allocated_bytes since BeginStep
  int64_t retries = 0;          // times that cached segments were given back to reserve another
  int64_t ooms = 0;             // requests refused

  void BeginStep() { step_peak_bytes = allocated_bytes; }
  void Allocate(int64_t block_bytes, int64_t requested);
  void Retire(int64_t block_bytes, int64_t requested);  // allocated, but not active, ends

  int64_t free_bytes() const { return reserved_bytes - active_bytes; }
  // Fragmentation, both from 0 to 1; 0 when there is nothing to speak of.
  double UnallocatedShare() const;  // 1 - allocated / reserved
  double ScatteredShare() const;    // 1 - largest free block / free bytes
};

}  // namespace terrace
