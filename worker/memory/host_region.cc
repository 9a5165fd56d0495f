// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/host_region.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/memory/host_node.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<HostRegion>> HostRegion::Reserve(std::string_view name,
                                                                int64_t bytes, int threads,
                                                                const HostLimits& limits) {
  ASSIGN_OR_RETURN(Arena arena, Arena::Reserve(name, bytes));
  std::unique_ptr<HostRegion> region(new HostRegion(std::move(arena)));
  if (const auto node = LocalNode()) {
    // Refused in some containers; then pages come from where they are touched, which is near too.
    PreferNode({region->data(), static_cast<size_t>(region->arena_.reserved_bytes())}, *node);
  }
  region->arena_.Touch(threads);  // with all threads: mlock would fault pages in with one
  region->Lock(limits);
  return region;
}

void HostRegion::Lock(const HostLimits& limits) {
  const int64_t bytes = arena_.reserved_bytes();
  if (bytes > limits.lockable_bytes) {
    unlocked_because_ =
        absl::StrCat("RLIMIT_MEMLOCK is ", limits.memlock_limit_bytes, " bytes, of which ",
                     limits.lockable_bytes, " are free, the region has ", bytes,
                     "; raise it (ulimit -l, LimitMEMLOCK=) or grant CAP_IPC_LOCK");
    return;
  }
  if (::mlock(arena_.data(), bytes) == 0) return;
  unlocked_because_ = absl::StrCat("mlock of ", bytes, " bytes: ", std::strerror(errno));
  // A part may be locked: all or nothing, so that pinned_bytes() is the truth.
  ::munlock(arena_.data(), bytes);
}

}  // namespace terrace
