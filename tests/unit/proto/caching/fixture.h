// Segments that are only addresses: never mapped, given out downwards or upwards, with an end that
// tests set.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>

#include "absl/status/status.h"
#include "proto/caching/segments.h"

namespace terrace {

class NumberedSegments final : public SegmentSource {
 public:
  absl::StatusOr<std::byte*> Reserve(int64_t bytes) override {
    ++asked;
    if (!failure.ok()) return failure;
    if (bytes > left_bytes) return absl::ResourceExhaustedError("the source is empty");
    left_bytes -= bytes;
    const uint64_t span = static_cast<uint64_t>(bytes) + 4096;
    if (downwards) next_ -= span;
    std::byte* data = reinterpret_cast<std::byte*>(next_);
    if (!downwards) next_ += span;
    sizes.emplace(data, bytes);
    return data;
  }
  void Release(std::byte* data) override {
    left_bytes += sizes.at(data);
    sizes.erase(data);
  }

  bool downwards = true;
  int64_t left_bytes = std::numeric_limits<int64_t>::max();
  absl::Status failure;
  int asked = 0;
  std::map<std::byte*, int64_t> sizes;  // of what is reserved

 private:
  uint64_t next_ = uint64_t{1} << 46;
};

}  // namespace terrace
