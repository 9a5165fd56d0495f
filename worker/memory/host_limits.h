// How much memory this process may still take, by everyone who has a say: the system
// (MemAvailable), the control groups that the process is in (v2 and v1, with all their parents),
// and RLIMIT_MEMLOCK for the part that is to be locked.
//
// Read from /proc and /sys at the moment of the call; what others take later is not in it. A file
// that is missing or not readable is no limit. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr int64_t kNoLimit = INT64_MAX;

// A control group's limit. Its page cache counts as free: the system takes it back when needed.
struct GroupLimit {
  int64_t free_bytes = kNoLimit;   // below the limit, now; the smallest over the process's groups
  int64_t limit_bytes = kNoLimit;  // of that group
  std::string file;                // that says so
};

struct HostLimits {
  int64_t available_bytes = kNoLimit;  // of the machine
  GroupLimit group;
  int64_t lockable_bytes = kNoLimit;  // RLIMIT_MEMLOCK less what is locked; none with CAP_IPC_LOCK
  int64_t memlock_limit_bytes = kNoLimit;
  int64_t taken_bytes = 0;  // by other ranks here, no longer in what is free above (host_share.h)
};

// Files are looked for below `root` ("" in earnest).
HostLimits ReadHostLimits(std::string_view root = "");

}  // namespace terrace
