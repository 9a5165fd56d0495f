// SPDX-License-Identifier: Apache-2.0
#include "base/paths/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "base/file.h"
#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<UniqueFd> CreateNewFile(const std::string& path, mode_t mode) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return FileError(errno, "replace", path);
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return FileError(errno, "create", path);
  if (::fchmod(fd.get(), mode) != 0) return FileError(errno, "change the mode of", path);
  return fd;
}

absl::Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode) {
  const std::string fresh = path + ".new";
  absl::Status status = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const UniqueFd fd, CreateNewFile(fresh, mode));
    RETURN_IF_ERROR(WriteAll(fd, std::as_bytes(std::span(text)), fresh));
    return SyncFile(fd, fresh);
  }();
  if (status.ok()) status = Rename(fresh, path);
  if (!status.ok()) ::unlink(fresh.c_str());  // what did fit of it is in the way of others
  return status;
}

}  // namespace terrace
