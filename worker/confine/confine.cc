// SPDX-License-Identifier: Apache-2.0
#include "worker/confine/confine.h"

#include <sys/prctl.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/confine/landlock.h"
#include "worker/confine/reach.h"
#include "worker/confine/syscall_filter.h"

namespace terrace {

std::vector<std::string> ArgumentsOf(const ConfineOptions& options) {
  std::vector<std::string> arguments = ArgumentsOf(options.roots);
  if (!options.sandbox) arguments.push_back("--no-sandbox");
  return arguments;
}

std::string DescribeSandbox() {
  const int version = LandlockVersion();
  return absl::StrCat(version > 0 ? absl::StrCat("Landlock ", version) : "no Landlock", ", ",
                      HasSeccomp() ? "seccomp" : "no seccomp");
}

absl::Status ConfineTemplates(const std::string& python, const ConfineOptions& options) {
  if (!options.sandbox) return absl::OkStatus();
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return absl::ErrnoToStatus(errno, "cannot set no_new_privs");
  RETURN_IF_ERROR(RestrictFiles({.paths = PathsOfPython(python), .reads = true}).status());
  return RefuseCalls({.programs = true, .sockets = false}).status();
}

absl::Status ConfineRank(const v1::RankConfig& config, const ConfineOptions& options) {
  if (!options.sandbox) return absl::OkStatus();
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return absl::ErrnoToStatus(errno, "cannot set no_new_privs");
  RETURN_IF_ERROR(RestrictFiles(ReachOf(config, options.roots)).status());
  const bool offloads = config.spec().resources().nvme().paths_size() > 0;
  return RefuseCalls({.io_uring = offloads}).status();
}

}  // namespace terrace
