// SPDX-License-Identifier: Apache-2.0
#include "base/paths/same_access.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "base/paths/new_file.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr mode_t kReadWrite = S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH;
constexpr mode_t kGroup = S_IRGRP | S_IWGRP;

// For a file of the group `gid`.
mode_t ModeOf(const struct stat& source, gid_t gid) {
  mode_t mode = source.st_mode & kReadWrite;
  if (gid != source.st_gid) mode = (mode & ~kGroup) | ((mode << 3) & (source.st_mode & kGroup));
  return mode | S_IRUSR | S_IWUSR;
}

}  // namespace

absl::StatusOr<UniqueFd> CreateWithAccessOf(const std::string& source, const std::string& path) {
  struct stat from = {}, made = {};
  if (::stat(source.c_str(), &from) != 0) return FileError(errno, "open", source);
  ASSIGN_OR_RETURN(UniqueFd fd, CreateNewFile(path, S_IRUSR | S_IWUSR));
  // Only root may give a file away, others to groups of theirs: what they may not stays as it is.
  if (::fchown(fd.get(), from.st_uid, from.st_gid) != 0 &&
      ::fchown(fd.get(), static_cast<uid_t>(-1), from.st_gid) != 0) {
    errno = 0;
  }
  if (::fstat(fd.get(), &made) != 0 || ::fchmod(fd.get(), ModeOf(from, made.st_gid)) != 0)
    return FileError(errno, "change the mode of", path);
  return fd;
}

void LimitAccessTo(const std::string& source, const std::string& path) {
  struct stat from = {}, made = {};
  if (::stat(source.c_str(), &from) != 0 || ::lstat(path.c_str(), &made) != 0) return;
  const mode_t more = made.st_mode & kReadWrite & ~ModeOf(from, made.st_gid);
  if (more == 0 || !S_ISREG(made.st_mode)) return;
  if (::chmod(path.c_str(), made.st_mode & 07777 & ~more) != 0) return;  // another user's
}

}  // namespace terrace
