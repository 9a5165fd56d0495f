// The host tier of a rank: one region of exact size for what is offloaded, made as an arena is (2
// MiB pages where granted, guard pages, named in /proc/<pid>/maps), on the NUMA node of the thread
// that reserves it, and locked so that the system never swaps it and devices may read it directly.
//
// Where it must not be locked (RLIMIT_MEMLOCK without CAP_IPC_LOCK) it works all the same, slower:
// unlocked_because() says why.
//
// Owns the memory. Thread-compatible; Read and Write as in region.h.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/memory/arena.h"
#include "worker/memory/host_limits.h"

namespace terrace {

class HostRegion final : public Region {
 public:
  // Reserved, touched by `threads` threads, locked if `limits` allow. RESOURCE_EXHAUSTED with the
  // bytes when the system refuses the memory itself. The memory is zero.
  static absl::StatusOr<std::unique_ptr<HostRegion>> Reserve(std::string_view name, int64_t bytes,
                                                             int threads, const HostLimits& limits);

  std::byte* data() const override { return arena_.data(); }
  int64_t bytes() const override { return arena_.bytes(); }  // as asked for
  absl::Status Read(int64_t offset, std::span<std::byte> to) override {
    return arena_.Read(offset, to);
  }
  absl::Status Write(int64_t offset, std::span<const std::byte> from) override {
    return arena_.Write(offset, from);
  }

  int64_t pinned_bytes() const { return unlocked_because_.empty() ? arena_.reserved_bytes() : 0; }
  // Empty when it is locked; otherwise the limit, its value and the way out.
  const std::string& unlocked_because() const { return unlocked_because_; }

 private:
  explicit HostRegion(Arena arena) : arena_(std::move(arena)) {}
  void Lock(const HostLimits& limits);

  Arena arena_;
  std::string unlocked_because_;
};

}  // namespace terrace
