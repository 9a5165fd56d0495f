// SPDX-License-Identifier: Apache-2.0
#include "base/pipe_text.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace terrace {
namespace {

absl::Status TooLong(const std::string& name, absl::Duration patience) {
  return absl::InvalidArgumentError(absl::StrCat(name, " did not end within ",
                                                 absl::FormatDuration(patience),
                                                 "; write what it gives to a file, and name that"));
}

// OK when there is something to read, or its end.
absl::Status Await(int fd, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("");
    pollfd wanted = {.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "cannot wait");
  }
}

// `blocks`: reading waits, and so must not begin before there is something.
absl::StatusOr<std::string> ReadToEnd(int fd, bool blocks, const std::string& name,
                                      int64_t limit_bytes, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  std::string text;
  std::array<char, 16384> buffer;
  bool wait = blocks;
  while (true) {
    if (wait && !Await(fd, deadline).ok()) return TooLong(name, patience);
    wait = blocks;
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      wait = true;
      continue;
    }
    if (got < 0) return FileError(errno, "read", name);
    text.append(buffer.data(), static_cast<size_t>(got));
    if (static_cast<int64_t>(text.size()) > limit_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " gives more than ", limit_bytes, " bytes, the most that is read"));
    }
  }
}

}  // namespace

bool IsPipe(const std::string& path) {
  struct stat info = {};
  return path == kStandardInput || (::stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode));
}

std::string FolderOf(const std::string& path) {
  std::error_code error;
  if (IsPipe(path)) return std::filesystem::current_path(error).string();
  return std::filesystem::absolute(path, error).parent_path().lexically_normal().string();
}

absl::StatusOr<std::string> ReadTextOrPipe(const std::string& path, int64_t limit_bytes,
                                           absl::Duration patience) {
  if (!IsPipe(path)) return ReadTextFile(path, limit_bytes);
  std::string name = "standard input";
  UniqueFd own;
  if (path != kStandardInput) {
    name = path;
    own = UniqueFd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!own.valid()) return FileError(errno, "open", path);
  }
  const bool blocks = !own.valid();
  ASSIGN_OR_RETURN(std::string text, ReadToEnd(blocks ? STDIN_FILENO : own.get(), blocks, name,
                                               limit_bytes, patience));
  if (!text.empty()) return text;
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is empty: nobody writes into it; name a file, or a pipe with a writer"));
}

}  // namespace terrace
