// Which bytes of an arena are taken at which times, for lowest-offset placement of 10^5 buffers.
//
// A segment tree over time slots. Every node keeps two sets of taken byte ranges, merged where they
// touch: of the buffers that live during all of its slots ("covering") and of those that live
// during some ("touching"). What is taken at any time of a life is then the union of a few sets:
// "touching" of the nodes the life splits into, "covering" of their ancestors. The sets are short,
// because lowest-offset placement leaves few holes.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace terrace {

// Slots [begin, end), not empty.
struct SlotRange {
  int begin = 0;
  int end = 0;
};

class Occupancy {
 public:
  explicit Occupancy(int slots);

  // The lowest offset at which `bytes` are free during all slots of [begin, end). REQUIRES: begin <
  // end <= slots.
  int64_t FindLowest(int begin, int end, int64_t bytes) const {
    const SlotRange life = {begin, end};
    return FindLowest(absl::MakeConstSpan(&life, 1), bytes);
  }
  // The same during all slots of all `lives`, which is not empty.
  int64_t FindLowest(absl::Span<const SlotRange> lives, int64_t bytes) const;
  // Takes [offset, offset + bytes) during [begin, end).
  void Take(int begin, int end, int64_t offset, int64_t bytes);

 private:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  using Ranges = std::vector<Range>;  // sorted, neither overlapping nor touching

  static void Insert(Range range, Ranges* ranges);
  // Adds to cursors_ the sets that matter for a life.
  void Collect(int begin, int end) const;
  int64_t LowestOfCollected(int64_t bytes) const;

  int leaves_ =
      1;  // a power of two; node n has the children 2n and 2n + 1, leaf i is node leaves_ + i
  std::vector<Ranges> covering_;
  std::vector<Ranges> touching_;
  // Scratch of searches, kept to avoid allocation: what has not been passed yet of each set that
  // matters.
  struct Cursor {
    const Range* next;
    const Range* last;
  };
  mutable std::vector<Cursor> cursors_;
};

}  // namespace terrace
