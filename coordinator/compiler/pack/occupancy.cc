// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/occupancy.h"

#include <algorithm>

namespace terrace {

Occupancy::Occupancy(int slots) {
  while (leaves_ < slots) leaves_ *= 2;
  covering_.resize(2 * leaves_);
  touching_.resize(2 * leaves_);
}

void Occupancy::Insert(Range range, Ranges* ranges) {
  // [first, last) are the ranges that meet or touch the new one.
  auto first = std::partition_point(ranges->begin(), ranges->end(),
                                    [&](const Range& r) { return r.end < range.begin; });
  auto last = first;
  while (last != ranges->end() && last->begin <= range.end) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
    ++last;
  }
  if (first == last) {
    ranges->insert(first, range);
  } else {
    *first = range;
    ranges->erase(first + 1, last);
  }
}

void Occupancy::Collect(int begin, int end) const {
  const auto add = [this](const Ranges& ranges) {
    if (!ranges.empty()) cursors_.push_back({ranges.data(), ranges.data() + ranges.size()});
  };
  // A buffer meets this life if it is stored at an ancestor of the first or the last slot, or below
  // one of the nodes that the life splits into.
  int first = begin + leaves_;
  int last = end - 1 + leaves_;
  for (; first != last; first /= 2, last /= 2) {
    add(covering_[first]);
    add(covering_[last]);
  }
  for (; first > 0; first /= 2) add(covering_[first]);
  for (int left = begin + leaves_, right = end + leaves_; left < right; left /= 2, right /= 2) {
    if (left & 1) add(touching_[left++]);
    if (right & 1) add(touching_[--right]);
  }
}

int64_t Occupancy::FindLowest(absl::Span<const SlotRange> lives, int64_t bytes) const {
  cursors_.clear();
  for (const SlotRange& life : lives) Collect(life.begin, life.end);
  return LowestOfCollected(bytes);
}

int64_t Occupancy::LowestOfCollected(int64_t bytes) const {
  int64_t offset = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (Cursor& cursor : cursors_) {
      while (cursor.next != cursor.last && cursor.next->end <= offset) ++cursor.next;
      while (cursor.next != cursor.last && cursor.next->begin < offset + bytes) {
        offset = cursor.next->end;
        ++cursor.next;
        moved = true;
      }
    }
  }
  return offset;
}

void Occupancy::Take(int begin, int end, int64_t offset, int64_t bytes) {
  const Range range = {offset, offset + bytes};
  const auto take = [&](int node) {
    Insert(range, &covering_[node]);
    Insert(range, &touching_[node]);
  };
  for (int left = begin + leaves_, right = end + leaves_; left < right; left /= 2, right /= 2) {
    if (left & 1) take(left++);
    if (right & 1) take(--right);
  }
  // What is above the nodes that the life splits into is above its first or its last slot. What is
  // below needs no entry: the "covering" set above it says the same.
  int first = begin + leaves_;
  int last = end - 1 + leaves_;
  for (; first != last; first /= 2, last /= 2) {
    Insert(range, &touching_[first]);
    Insert(range, &touching_[last]);
  }
  for (; first > 0; first /= 2) Insert(range, &touching_[first]);
}

}  // namespace terrace
