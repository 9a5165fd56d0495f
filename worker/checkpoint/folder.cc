// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryPrefix = ".tmp-";
// Not the job's lock (directory_lock.h), which is held while one is written.
constexpr char kLockName[] = ".write.lock";
constexpr std::string_view kStepPrefix = "step-";
constexpr int64_t kLockTimeoutMs = 30'000;

std::string OrHere(std::string_view folder) { return folder.empty() ? "." : std::string(folder); }

absl::StatusOr<std::vector<fs::path>> EntriesOf(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    paths.push_back(it->path());
  }
  if (error) return FileError(error.value(), "list", directory);
  return paths;
}

absl::Status RemoveLeftovers(const std::string& parent) {
  ASSIGN_OR_RETURN(const std::vector<fs::path> entries, EntriesOf(parent));
  for (const fs::path& path : entries) {
    if (absl::StartsWith(path.filename().string(),
                         absl::StrCat(Absl(kTemporaryPrefix), Absl(kStepPrefix)))) {
      RETURN_IF_ERROR(RemoveAll(path.string()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string StepFolderName(int64_t step) { return absl::StrFormat("step-%08d", step); }

int64_t StepOfFolderName(std::string_view name) {
  if (!absl::StartsWith(Absl(name), Absl(kStepPrefix))) return -1;
  name.remove_prefix(kStepPrefix.size());
  int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

std::string PendingFolder::TemporaryPath(std::string_view parent, std::string_view name,
                                         int64_t attempt) {
  return (fs::path(OrHere(parent)) / absl::StrCat(Absl(kTemporaryPrefix), Absl(name), "-", attempt))
      .string();
}

absl::StatusOr<PendingFolder> PendingFolder::Create(std::string_view parent, std::string_view name,
                                                    int64_t attempt) {
  PendingFolder folder;
  folder.parent_ = OrHere(parent);
  folder.name_ = std::string(name);
  RETURN_IF_ERROR(MakeDirectories(folder.parent_));
  if (StepOfFolderName(name) >= 0) {
    ASSIGN_OR_RETURN(folder.lock_,
                     LockFile((fs::path(folder.parent_) / kLockName).string(), kLockTimeoutMs));
    RETURN_IF_ERROR(RemoveLeftovers(folder.parent_));
  }
  const std::string temporary = TemporaryPath(parent, name, attempt);
  RETURN_IF_ERROR(MakeDirectories(temporary));
  folder.temporary_ = temporary;
  return folder;
}

PendingFolder::~PendingFolder() {
  if (!temporary_.empty()) {
    RemoveAll(temporary_).IgnoreError();  // the failure that brought us here is reported
  }
}

absl::Status PendingFolder::Commit() {
  RETURN_IF_ERROR(SyncDirectory(temporary_));
  const std::string final_path = (fs::path(parent_) / name_).string();
  std::error_code ignored;
  if (fs::exists(final_path, ignored)) {
    RETURN_IF_ERROR(Replace(final_path));
  } else {
    RETURN_IF_ERROR(Rename(temporary_, final_path));
  }
  temporary_.clear();
  return SyncDirectory(parent_);
}

// Exchanges the two names in one step where the file system can, so that there is always a folder
// of the final name.
absl::Status PendingFolder::Replace(const std::string& final_path) {
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) ==
      0) {
    return RemoveAll(temporary_);
  }
  if (errno != EINVAL && errno != ENOSYS) return FileError(errno, "replace", final_path);
  const std::string old = absl::StrCat(temporary_, "-old");
  RETURN_IF_ERROR(Rename(final_path, old));
  RETURN_IF_ERROR(Rename(temporary_, final_path));
  return RemoveAll(old);
}

absl::Status PendingFolder::Prune(uint32_t keep, int64_t spared,
                                  bool (*is_complete)(const std::string& path)) const {
  if (keep == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::vector<std::string> paths, ListStepFolders(parent_));
  uint32_t kept = 0;
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    if (kept < keep && is_complete(*path)) {
      ++kept;
      continue;
    }
    if (StepOfFolderName(fs::path(*path).filename().string()) == spared) continue;
    if (kept < keep) continue;  // damaged, but newer than what we keep: for a person to look at
    // A kill inside the removal may not leave half a folder under a final name.
    const fs::path name = fs::path(*path).filename();
    const std::string leaving =
        (fs::path(parent_) / absl::StrCat(Absl(kTemporaryPrefix), name.string())).string();
    RETURN_IF_ERROR(Rename(*path, leaving));
    RETURN_IF_ERROR(RemoveAll(leaving));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListStepFolders(std::string_view directory) {
  ASSIGN_OR_RETURN(const std::vector<fs::path> entries, EntriesOf(std::string(directory)));
  std::map<int64_t, std::string> by_step;
  for (const fs::path& path : entries) {
    const int64_t step = StepOfFolderName(path.filename().string());
    if (step >= 0) by_step[step] = path.string();
  }
  std::vector<std::string> paths;
  for (auto& [step, path] : by_step) paths.push_back(std::move(path));
  return paths;
}

}  // namespace terrace
