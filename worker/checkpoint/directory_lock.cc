// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);

}  // namespace

absl::StatusOr<DirectoryLock> DirectoryLock::Take(std::string_view directory, int64_t patience_ms) {
  const std::string path = absl::StrCat(Absl(directory), "/.lock");
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return FileError(errno, "open", path);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return FileError(errno, "lock", path);
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::FailedPreconditionError(
          absl::StrCat("checkpoint.directory: another job writes into ", Absl(directory),
                       "; name another folder, or cancel that job"));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return DirectoryLock(std::move(fd));
}

}  // namespace terrace
