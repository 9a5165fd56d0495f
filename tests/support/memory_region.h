// A region over bytes that somebody else owns: what tests hand to checkpoints in place of an arena.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "worker/memory/region.h"

namespace terrace {

class MemoryRegion final : public Region {
 public:
  MemoryRegion() = default;
  explicit MemoryRegion(std::span<std::byte> memory) : memory_(memory) {}

  std::byte* data() const override { return memory_.data(); }
  int64_t bytes() const override { return static_cast<int64_t>(memory_.size()); }
  absl::Status Read(int64_t offset, std::span<std::byte> to) override {
    if (!Holds(offset, to.size())) return absl::OutOfRangeError("beyond the region");
    std::memcpy(to.data(), memory_.data() + offset, to.size());
    return absl::OkStatus();
  }
  absl::Status Write(int64_t offset, std::span<const std::byte> from) override {
    if (!Holds(offset, from.size())) return absl::OutOfRangeError("beyond the region");
    std::memcpy(memory_.data() + offset, from.data(), from.size());
    return absl::OkStatus();
  }

 private:
  bool Holds(int64_t offset, size_t count) const {
    return offset >= 0 && static_cast<size_t>(offset) + count <= memory_.size();
  }

  std::span<std::byte> memory_;
};

}  // namespace terrace
