// SPDX-License-Identifier: Apache-2.0
#include "base/paths/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

absl::Status ReplaceBy(const std::string& fresh, const std::string& path, std::string_view text,
                       mode_t mode) {
  absl::Status status = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const UniqueFd fd, CreateNewFile(fresh, mode));
    RETURN_IF_ERROR(WriteAll(fd, std::as_bytes(std::span(text)), fresh));
    return SyncFile(fd, fresh);
  }();
  if (status.ok()) status = Rename(fresh, path);
  if (!status.ok()) ::unlink(fresh.c_str());  // what did fit of it is in the way of others
  return status;
}

absl::Status WriteInto(const std::string& path, std::string_view text) {
  // Not to wait for a reader of a FIFO; one that is there may be slow.
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return FileError(errno, "open", path);
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0)
    return FileError(errno, "write", path);
  return WriteAll(fd, std::as_bytes(std::span(text)), path);
}

}  // namespace

absl::StatusOr<UniqueFd> CreateNewFile(const std::string& path, mode_t mode) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return FileError(errno, "replace", path);
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return FileError(errno, "create", path);
  if (::fchmod(fd.get(), mode) != 0) return FileError(errno, "change the mode of", path);
  return fd;
}

absl::Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode) {
  return ReplaceBy(path + ".new", path, text, mode);
}

absl::Status CheckCanBeReplaced(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return absl::OkStatus();
  const char* what = S_ISDIR(info.st_mode)    ? "a folder"
                     : S_ISFIFO(info.st_mode) ? "a FIFO"
                     : S_ISSOCK(info.st_mode) ? "a socket"
                                              : "a device";
  return absl::InvalidArgumentError(absl::StrCat("cannot replace ", path, ": it is ", what,
                                                 ", must be a file or not there; name another"));
}

absl::Status WriteOutput(const std::string& path, std::string_view text) {
  struct stat info = {};
  const bool there = ::stat(path.c_str(), &info) == 0;
  if (there && S_ISDIR(info.st_mode)) return FileError(EISDIR, "write", path);
  if (there && !S_ISREG(info.st_mode)) return WriteInto(path, text);
  constexpr mode_t kMode = 0644;
  if (!there) return ReplaceBy(absl::StrCat(path, ".", getpid(), ".new"), path, text, kMode);
  std::error_code error;
  const std::string file = std::filesystem::canonical(path, error).string();
  if (error) return FileError(error.value(), "open", path);
  const absl::Status status =
      ReplaceBy(absl::StrCat(file, ".", getpid(), ".new"), file, text, info.st_mode & 07777);
  // A file may be written in a folder where nothing else can be made.
  return absl::IsPermissionDenied(status) ? WriteSyncedFile(file, text) : status;
}

}  // namespace terrace
