// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr size_t kNameBytesMax = 200;

// Who holds the lock, as far as it said so; earlier releases did not say the epoch.
LockHolder HolderOf(const UniqueFd& fd) {
  char text[kNameBytesMax];
  const ssize_t bytes = ::pread(fd.get(), text, sizeof text, 0);
  if (bytes <= 0) return {};
  const std::vector<std::string> lines =
      absl::StrSplit(absl::string_view(text, static_cast<size_t>(bytes)), '\n');
  LockHolder holder = {.job = CleanLine(lines[0], kNameBytesMax)};
  if (lines.size() < 2 || !absl::SimpleAtoi(lines[1], &holder.epoch)) holder.epoch = 0;
  return holder;
}

bool IsEarlier(const LockHolder& held, const LockHolder& wants) {
  return held.job == wants.job && held.epoch > 0 && held.epoch < wants.epoch;
}

absl::Status Held(std::string_view directory, const LockHolder& by, const LockHolder& wants) {
  if (IsEarlier(by, wants)) {
    return absl::UnavailableError(absl::StrCat(
        "checkpoint.directory: a rank of an earlier start of this job (epoch ", by.epoch,
        ") still holds ", Absl(directory),
        ", on a machine that does not answer: end it there, or wait until that machine is back"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.directory: ", by.job.empty() ? "another job" : "job ", by.job,
                   " writes into ", Absl(directory), "; name another folder, or cancel that job"));
}

}  // namespace

absl::StatusOr<DirectoryLock> DirectoryLock::Take(std::string_view directory,
                                                  const LockHolder& holder,
                                                  const LockPatience& patience) {
  const std::string path = absl::StrCat(Absl(directory), "/.lock");
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return FileError(errno, "open", path);
  const auto start = std::chrono::steady_clock::now();
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return FileError(errno, "lock", path);
    const LockHolder by = HolderOf(fd);
    const int64_t wait_ms = IsEarlier(by, holder) ? patience.earlier_ms : patience.ms;
    if (std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(wait_ms))
      return Held(directory, by, holder);
    std::this_thread::sleep_for(kPollInterval);
  }
  // A name that cannot be written, on a full disk say, keeps nobody from training.
  const std::string text =
      absl::StrCat(holder.job.substr(0, kNameBytesMax / 2), "\n", holder.epoch, "\n");
  [[maybe_unused]] const bool is_told =
      ::ftruncate(fd.get(), 0) == 0 && ::pwrite(fd.get(), text.data(), text.size(), 0) > 0;
  return DirectoryLock(std::move(fd));
}

}  // namespace terrace
