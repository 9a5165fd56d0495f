// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/caching_segments.h"

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

void MappedSegments::Release(std::byte* data) { arenas_.erase(data); }

}  // namespace terrace
