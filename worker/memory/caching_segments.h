// Memory for a caching allocator: mapped segments, each an Arena (guard pages around it, huge pages
// where the system grants them), all of its pages touched, so that what is reserved is resident; or
// ranges of which pages are mapped, resident likewise (mapped_range.h).
//
// Owns the memory. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "proto/caching/segments.h"
#include "worker/memory/arena.h"
#include "worker/memory/mapped_range.h"

namespace terrace {

class MappedSegments final : public SegmentSource {
 public:
  // `threads` touch pages.
  explicit MappedSegments(int threads = 1) : threads_(threads) {}

  absl::StatusOr<std::byte*> Reserve(int64_t bytes) override;
  void Release(std::byte* data) override;
  absl::StatusOr<std::byte*> ReserveRange(int64_t bytes) override;
  absl::Status Map(std::byte* data, int64_t bytes) override;
  void Unmap(std::byte* data, int64_t bytes) override;
  size_t count() const { return arenas_.size() + ranges_.size(); }

 private:
  const int threads_;
  MappedRange& RangeOf(std::byte* data);

  std::map<std::byte*, Arena> arenas_;  // by first byte
  std::map<std::byte*, MappedRange> ranges_;
};

}  // namespace terrace
