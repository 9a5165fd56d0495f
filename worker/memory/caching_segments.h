// Where a caching allocator's segments come from: an interface, and mapped memory, each segment an
// Arena (guard pages around it, huge pages where the system grants them).
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/memory/arena.h"

namespace terrace {

class SegmentSource {
 public:
  virtual ~SegmentSource() = default;

  // RESOURCE_EXHAUSTED when there is no more; the allocator then gives back what it can and asks
  // once more. Other errors go to whoever asked for memory.
  virtual absl::StatusOr<std::byte*> Reserve(int64_t bytes) = 0;
  // REQUIRES: `data` came from Reserve, and no stream uses it any more.
  virtual void Release(std::byte* data) = 0;
};

class MappedSegments final : public SegmentSource {
 public:
  absl::StatusOr<std::byte*> Reserve(int64_t bytes) override;
  void Release(std::byte* data) override;
  size_t count() const { return arenas_.size(); }

 private:
  std::map<std::byte*, Arena> arenas_;  // by first byte
};

}  // namespace terrace
