// What the process of a rank gives up between fork and exec: user, capabilities, limits, and the
// chance to get any of it back.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/confine/rank_user.h"

namespace terrace {

inline constexpr rlim_t kRankFilesMax = 1
                                        << 20;  // open at a time; a socket for each peer and group

struct RankPrivileges {
  std::optional<RankUser> user;  // none: stays the worker's
  rlim_t core_bytes = 0;         // of a core file
};

// Of the calling process: for a child that executes a rank next. Null, or what failed, with errno.
// Uses async-signal-safe calls only. A capability to lock memory turns into an unlimited
// RLIMIT_MEMLOCK; where the process may not raise that, as in some containers, it stays, alone. The
// limit of open files becomes what it may be, up to kRankFilesMax.
const char* DropPrivileges(const RankPrivileges& privileges);

struct NeededPath {
  std::string path;
  int mode = 0;       // of access()
  std::string field;  // the option that names it
};

// Whether a rank could use these paths, tried by a child that has given up the same.
// FAILED_PRECONDITION says which it could not, and what to do.
absl::Status CheckPaths(const RankPrivileges& privileges, const std::vector<NeededPath>& paths);

}  // namespace terrace
