// Landlock: which files a process may read and change, whatever its user may. By system calls, as
// the C library has none. What cannot be known beforehand is never allowed: what no rule names is
// refused. Threads and children have the same rules; threads that exist already do not.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

// Of the kernel: 1 since Linux 5.13, more since; 0 where there is none, or it is off.
int LandlockVersion();

enum class Reach {
  kRead,    // files and folders below
  kRun,     // also start programs
  kChange,  // also write, create, rename and remove
  kOwn,     // also sockets and symbolic links: the run directory
  kDevice,  // read and write what is there, with ioctl
};

struct ReachedPath {
  std::string path;
  Reach reach = Reach::kRead;
};

struct LandlockRules {
  std::vector<ReachedPath> paths;  // those that are not there are left out
  bool reads = true;               // false: reading is not restricted, changes are
};

// From here on, for this thread and what it starts. False where the kernel has no Landlock: then
// nothing has changed. REQUIRES: no_new_privs, or root.
absl::StatusOr<bool> RestrictFiles(const LandlockRules& rules);

}  // namespace terrace
