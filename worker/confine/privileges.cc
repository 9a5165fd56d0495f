// SPDX-License-Identifier: Apache-2.0
#include "worker/confine/privileges.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr int kCannotDrop = 255;  // exit status; below it: 1 + the index of a path

bool MayLockMemory() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

// `keeps_lock`: the capability to lock memory could not be turned into a limit.
const char* SetLimits(rlim_t core_bytes, bool* keeps_lock) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return "read RLIMIT_CORE";
  limit.rlim_cur = limit.rlim_max = std::min(core_bytes, limit.rlim_max);
  if (setrlimit(RLIMIT_CORE, &limit) != 0) return "set RLIMIT_CORE";
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return "read RLIMIT_NOFILE";
  limit.rlim_cur = limit.rlim_max = std::min(kRankFilesMax, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return "set RLIMIT_NOFILE";
  if (MayLockMemory()) {
    limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    *keeps_lock = setrlimit(RLIMIT_MEMLOCK, &limit) != 0;
  }
  return nullptr;
}

// Not glibc's functions, which would ask threads that the child does not have.
const char* BecomeUser(const RankUser& user) {
  if (geteuid() == user.uid) return nullptr;
  if (syscall(SYS_setgroups, user.groups.size(), user.groups.data()) != 0) return "set groups";
  if (syscall(SYS_setresgid, user.gid, user.gid, user.gid) != 0) return "change the group";
  if (syscall(SYS_setresuid, user.uid, user.uid, user.uid) != 0) return "change the user";
  return nullptr;
}

// All but that to lock memory, where it is kept: it goes through exec as an ambient one.
const char* DropCapabilities(bool keeps_lock) {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (keeps_lock) {
    __user_cap_data_struct& set = data[CAP_TO_INDEX(CAP_IPC_LOCK)];
    set.effective = set.permitted = set.inheritable = CAP_TO_MASK(CAP_IPC_LOCK);
  }
  if (syscall(SYS_capset, &header, data) != 0) return "drop capabilities";
  if (keeps_lock && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_IPC_LOCK, 0, 0) != 0)
    return "keep the capability to lock memory";
  return nullptr;
}

}  // namespace

const char* DropPrivileges(const RankPrivileges& privileges) {
  bool keeps_lock = false;
  if (const char* failed = SetLimits(privileges.core_bytes, &keeps_lock)) return failed;
  // Without CAP_SETPCAP the set stays, and no_new_privs keeps a program from gaining out of it.
  for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; ++cap) {
    if (!keeps_lock || cap != CAP_IPC_LOCK) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
  }
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);  // EINVAL before Linux 4.3: has none
  if (privileges.user.has_value()) {
    if (keeps_lock && prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) return "keep a capability";
    if (const char* failed = BecomeUser(*privileges.user)) return failed;
  }
  if (const char* failed = DropCapabilities(keeps_lock)) return failed;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "set no_new_privs";
  return nullptr;
}

absl::Status CheckPaths(const RankPrivileges& privileges, const std::vector<NeededPath>& paths) {
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "cannot start a process");
  if (child == 0) {
    if (DropPrivileges(privileges) != nullptr) _exit(kCannotDrop);
    for (size_t i = 0; i < paths.size(); ++i) {
      if (access(paths[i].path.c_str(), paths[i].mode) != 0) _exit(static_cast<int>(i + 1));
    }
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kCannotDrop;
  if (code == 0) return absl::OkStatus();
  const std::string who =
      privileges.user.has_value() ? absl::StrCat("user ", privileges.user->name) : "this user";
  if (code == kCannotDrop || static_cast<size_t>(code) > paths.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--rank-user: this process may not become ", who,
                     "; start it as root with the capabilities SETUID, SETGID and SETPCAP"));
  }
  const NeededPath& needed = paths[static_cast<size_t>(code - 1)];
  const char* const wish = (needed.mode & W_OK) != 0   ? "write into"
                           : (needed.mode & R_OK) != 0 ? "read"
                                                       : "use";
  return absl::FailedPreconditionError(
      absl::StrCat(needed.field, ": got ", needed.path, ", which a rank cannot ", wish, " as ", who,
                   "; give that user access to it and to the folders above it, or name another "
                   "place"));
}

}  // namespace terrace
