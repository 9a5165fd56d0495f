// Where a caching allocator's segments come from: an interface, and a source that hands out
// addresses without memory, for those who only want to know what would be reserved.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

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

// Never reads or writes what it hands out, and never hands out an address twice.
class CountedSegments final : public SegmentSource {
 public:
  absl::StatusOr<std::byte*> Reserve(int64_t bytes) override {
    std::byte* data = reinterpret_cast<std::byte*>(next_);
    next_ += static_cast<uint64_t>(bytes);
    return data;
  }
  void Release(std::byte*) override {}

 private:
  uint64_t next_ = uint64_t{1} << 32;
};

}  // namespace terrace
