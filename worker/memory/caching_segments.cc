// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/caching_segments.h"

#include <utility>

namespace terrace {

absl::StatusOr<std::byte*> MappedSegments::Reserve(int64_t bytes) {
  absl::StatusOr<Arena> arena = Arena::Reserve("terrace-segment", bytes);
  if (!arena.ok()) return arena.status();
  std::byte* data = arena->data();
  arenas_.emplace(data, std::move(*arena));
  return data;
}

void MappedSegments::Release(std::byte* data) { arenas_.erase(data); }

}  // namespace terrace
