// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr size_t kNameBytesMax = 200;

// Who holds the lock, as far as it said so.
std::string HolderOf(const UniqueFd& fd) {
  char name[kNameBytesMax];
  const ssize_t bytes = ::pread(fd.get(), name, sizeof name, 0);
  if (bytes <= 0) return "another job";
  return absl::StrCat("job ", CleanLine({name, static_cast<size_t>(bytes)}, kNameBytesMax));
}

}  // namespace

absl::StatusOr<DirectoryLock> DirectoryLock::Take(std::string_view directory, std::string_view job,
                                                  int64_t patience_ms) {
  const std::string path = absl::StrCat(Absl(directory), "/.lock");
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return FileError(errno, "open", path);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return FileError(errno, "lock", path);
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::FailedPreconditionError(
          absl::StrCat("checkpoint.directory: ", HolderOf(fd), " writes into ", Absl(directory),
                       "; name another folder, or cancel that job"));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  // For people: a name that cannot be written, on a full disk say, keeps nobody from training.
  [[maybe_unused]] const bool is_told =
      ::ftruncate(fd.get(), 0) == 0 &&
      ::pwrite(fd.get(), job.data(), std::min(job.size(), kNameBytesMax), 0) > 0;
  return DirectoryLock(std::move(fd));
}

}  // namespace terrace
