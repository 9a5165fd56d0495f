// The packer's own form of a problem: aligned bytes, and time as slots.
//
// A slot is a moment between a birth and the next death: there are no others at which more is
// alive. In: the buffers that Pack gets. Out: items in the same order. Pure; thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/compiler/pack/occupancy.h"
#include "coordinator/compiler/pack/pack.h"

namespace terrace {

struct PackItem {
  int64_t bytes = 0;  // > 0, a multiple of kPackAlignment
  int begin = 0;      // lives during the slots [begin, end)
  int end = 0;
  // The parts of that time in which it lives; empty: it lives all the time. Orders (orders.h)
  // use the time between them for other items; pages take it to live all the time.
  std::vector<SlotRange> lives;
  // In how many slots it lives.
  int life() const {
    if (lives.empty()) return end - begin;
    return std::accumulate(lives.begin(), lives.end(), 0, [](int sum, const SlotRange& part) {
      return sum + part.end - part.begin;
    });
  }
  // `lives`, or the one range [begin, end), for which the caller lends the memory.
  absl::Span<const SlotRange> LivesOr(SlotRange* whole) const {
    *whole = {begin, end};
    return lives.empty() ? absl::MakeConstSpan(whole, 1) : absl::MakeConstSpan(lives);
  }
};

struct PackProblem {
  std::vector<PackItem> items;
  int slots = 0;
  int64_t lower_bound_bytes = 0;  // largest sum of bytes alive in one slot
};

struct PackPlacement {
  std::vector<int64_t> offsets;  // one an item
  int64_t arena_bytes = 0;
};

// REQUIRES: sizes and lives are not empty.
PackProblem MakePackProblem(absl::Span<const PackBuffer> buffers);

}  // namespace terrace
