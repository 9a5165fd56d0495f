// SPDX-License-Identifier: Apache-2.0
#include "worker/confine/landlock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace terrace {
namespace {

// As in linux/landlock.h of today: the header of the machine that compiles may be older than the
// kernel that runs.
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr uint32_t kAskVersion = 1;
constexpr int kPathBeneath = 1;
constexpr uint64_t kExecute = 1 << 0, kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadDir = 1 << 3;
constexpr uint64_t kRemoveDir = 1 << 4, kRemoveFile = 1 << 5, kMakeChar = 1 << 6, kMakeDir = 1 << 7;
constexpr uint64_t kMakeReg = 1 << 8, kMakeSock = 1 << 9, kMakeFifo = 1 << 10, kMakeBlock = 1 << 11;
constexpr uint64_t kMakeSym = 1 << 12, kRefer = 1 << 13, kTruncate = 1 << 14, kIoctl = 1 << 15;
constexpr uint64_t kScopeSignal = 1 << 1;

constexpr uint64_t kReading = kReadFile | kReadDir;
// No devices and no FIFOs anywhere.
constexpr uint64_t kChanging =
    kReading | kWriteFile | kTruncate | kRemoveDir | kRemoveFile | kMakeDir | kMakeReg | kRefer;
constexpr uint64_t kOwning = kChanging | kMakeSock | kMakeSym;
constexpr uint64_t kUsing = kReading | kWriteFile | kIoctl;
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate | kIoctl;

struct RulesetAttributes {
  uint64_t files = 0;
  uint64_t network = 0;  // version 4
  uint64_t scoped = 0;   // version 6
};
struct [[gnu::packed]] PathBeneath {
  uint64_t allowed = 0;
  int32_t folder = -1;
};

// What a kernel of this version can restrict.
RulesetAttributes Handled(int version, bool reads) {
  RulesetAttributes handled;
  handled.files = kExecute | kWriteFile | kRemoveDir | kRemoveFile | kMakeChar | kMakeDir |
                  kMakeReg | kMakeSock | kMakeFifo | kMakeBlock | kMakeSym;
  if (reads) handled.files |= kReading;
  if (version >= 2) handled.files |= kRefer;
  if (version >= 3) handled.files |= kTruncate;
  if (version >= 5) handled.files |= kIoctl;
  if (version >= 6) handled.scoped = kScopeSignal;
  return handled;
}

uint64_t Allowed(Reach reach) {
  switch (reach) {
    case Reach::kRead:
      return kReading;
    case Reach::kRun:
      return kReading | kExecute;
    case Reach::kChange:
      return kChanging;
    case Reach::kOwn:
      return kOwning;
    case Reach::kDevice:
      return kUsing;
  }
  return 0;
}

absl::Status AddRule(const UniqueFd& ruleset, const ReachedPath& reached, uint64_t handled) {
  const UniqueFd fd(::open(reached.path.c_str(), O_PATH | O_CLOEXEC));
  struct stat info = {};
  // Nothing there, or nothing that this user may see: there is nothing to allow.
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return absl::OkStatus();
  PathBeneath rule = {.allowed = Allowed(reached.reach) & handled, .folder = fd.get()};
  if (!S_ISDIR(info.st_mode)) rule.allowed &= kOfFiles;
  if (rule.allowed == 0) return absl::OkStatus();
  if (::syscall(kAddRule, ruleset.get(), kPathBeneath, &rule, 0) == 0) return absl::OkStatus();
  return FileError(errno, "allow a rank to reach", reached.path);
}

}  // namespace

int LandlockVersion() {
  const long version = ::syscall(kCreateRuleset, nullptr, 0, kAskVersion);
  return version > 0 ? static_cast<int>(version) : 0;
}

absl::StatusOr<bool> RestrictFiles(const LandlockRules& rules) {
  const int version = LandlockVersion();
  if (version == 0) return false;
  const RulesetAttributes handled = Handled(version, rules.reads);
  const size_t bytes = version >= 6   ? sizeof handled
                       : version >= 4 ? offsetof(RulesetAttributes, scoped)
                                      : offsetof(RulesetAttributes, network);
  const UniqueFd ruleset(static_cast<int>(::syscall(kCreateRuleset, &handled, bytes, 0)));
  if (!ruleset.valid()) return absl::ErrnoToStatus(errno, "landlock: cannot make rules");
  for (const ReachedPath& path : rules.paths)
    RETURN_IF_ERROR(AddRule(ruleset, path, handled.files));
  if (::syscall(kRestrictSelf, ruleset.get(), 0) == 0) return true;
  return absl::ErrnoToStatus(errno, "landlock: cannot restrict this process");
}

}  // namespace terrace
