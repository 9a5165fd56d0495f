// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/caching_segments.h"

#include <iterator>
#include <utility>

namespace terrace {

// The name makes it an arena for those who read the process's mappings (worker/memory/arena.h).
absl::StatusOr<std::byte*> MappedSegments::Reserve(int64_t bytes) {
  absl::StatusOr<Arena> arena = Arena::Reserve("terrace-arena-segment", bytes);
  if (!arena.ok()) return arena.status();
  arena->Touch(threads_);
  std::byte* data = arena->data();
  arenas_.emplace(data, std::move(*arena));
  return data;
}

void MappedSegments::Release(std::byte* data) {
  if (arenas_.erase(data) == 0) ranges_.erase(data);
}

absl::StatusOr<std::byte*> MappedSegments::ReserveRange(int64_t bytes) {
  absl::StatusOr<MappedRange> range = MappedRange::Reserve("terrace-arena-segment", bytes);
  if (!range.ok()) return range.status();
  std::byte* data = range->data();
  ranges_.emplace(data, std::move(*range));
  return data;
}

absl::Status MappedSegments::Map(std::byte* data, int64_t bytes) {
  MappedRange& range = RangeOf(data);
  return range.Map(data - range.data(), bytes);
}

void MappedSegments::Unmap(std::byte* data, int64_t bytes) {
  MappedRange& range = RangeOf(data);
  range.Unmap(data - range.data(), bytes);
}

MappedRange& MappedSegments::RangeOf(std::byte* data) {
  return std::prev(ranges_.upper_bound(data))->second;
}

}  // namespace terrace
