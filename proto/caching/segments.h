// Where a caching allocator's segments come from: an interface, and a source that hands out
// addresses without memory, for those who only want to know what would be reserved.
//
// A segment has a fixed size, or it is a range of addresses of which single pages get memory and
// give it back (expandable segments).
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

class SegmentSource {
 public:
  virtual ~SegmentSource() = default;

  // RESOURCE_EXHAUSTED when there is no more; the allocator then gives back what it can and asks
  // once more. Other errors go to whoever asked for memory.
  virtual absl::StatusOr<std::byte*> Reserve(int64_t bytes) = 0;
  // REQUIRES: `data` came from Reserve or ReserveRange, and no stream uses it any more. What is
  // mapped of a range goes with it.
  virtual void Release(std::byte* data) = 0;

  // Addresses without memory, on a boundary of CachingPolicy::kPageBytes. UNIMPLEMENTED, with what
  // is missing, where the source has segments of fixed size only.
  virtual absl::StatusOr<std::byte*> ReserveRange(int64_t) {
    return absl::UnimplementedError(
        "segments cannot grow here: use layout.allocator caching or planned");
  }
  // Gives memory to whole pages of a range that have none: to all of them, or, with
  // RESOURCE_EXHAUSTED, to none.
  virtual absl::Status Map(std::byte*, int64_t) {
    return absl::InternalError("Map without a range");
  }
  // REQUIRES: whole pages that have memory, and no stream uses them any more.
  virtual void Unmap(std::byte*, int64_t) {}
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
  absl::StatusOr<std::byte*> ReserveRange(int64_t bytes) override { return Reserve(bytes); }
  absl::Status Map(std::byte*, int64_t) override { return absl::OkStatus(); }

 private:
  uint64_t next_ = uint64_t{1} << 32;
};

}  // namespace terrace
