// SPDX-License-Identifier: Apache-2.0
#include "coordinator/control/restore.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/life/job_state.h"
#include "coordinator/store/sqlite_store.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// More than jobs are submitted, or a gang starts, between two backups.
constexpr int64_t kSkipped = 10'000;
// A store is a file, with a log beside it while it is open or if it was not closed.
constexpr const char* kEndings[] = {"", "-wal", "-shm"};

void Remove(const std::string& path) {
  std::error_code error;
  for (const char* ending : kEndings) fs::remove(path + ending, error);
}

// With the log of one that was not closed.
absl::Status CopyFiles(const std::string& from, const std::string& to) {
  for (const std::string ending : {"", "-wal"}) {
    std::error_code error;
    if (!ending.empty() && !fs::exists(from + ending, error)) continue;
    fs::copy_file(from + ending, to + ending, error);
    if (error)
      return FileError(error.value(), absl::StrCat("copy ", from, ending, " to"), to + ending);
    fs::permissions(to + ending, fs::perms::owner_read | fs::perms::owner_write, error);
  }
  return absl::OkStatus();
}

// OK where no store is there, or the one that is there may be moved away.
absl::Status CheckPlace(const std::string& path, bool replace) {
  std::error_code error;
  if (!fs::exists(path, error)) return absl::OkStatus();
  if (!replace) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is there already: with --replace it is moved aside"));
  }
  const absl::Status free = SqliteStore::Open(path).status();  // closed again, its log is in it
  return absl::IsUnavailable(free) ? free : absl::OkStatus();  // a damaged one is moved as well
}

// Also a log without its store, which would become part of what is put there.
absl::StatusOr<std::string> MoveAside(const std::string& path) {
  std::error_code error;
  std::string aside = path + ".before-restore";
  for (int i = 2; fs::exists(aside, error) || fs::exists(aside + "-wal", error); ++i)
    aside = absl::StrCat(path, ".before-restore-", i);
  bool any = false;
  for (const char* ending : kEndings) {
    if (!fs::exists(path + ending, error)) continue;
    RETURN_IF_ERROR(Rename(path + ending, aside + ending));
    any = true;
  }
  return any ? aside : "";
}

// See RestoreStore.
absl::StatusOr<Restored> PassNumbers(SqliteStore& store, int64_t unix_ms) {
  ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, store.ListJobs());
  Restored restored{.jobs = static_cast<int64_t>(jobs.size())};
  Transaction transaction;
  for (const v1::Job& job : jobs) {
    ASSIGN_OR_RETURN(Transition next, Apply(job, RestoredFromBackup{kSkipped}, unix_ms));
    if (!HasEnded(next.changed ? next.job.state() : job.state())) ++restored.unfinished;
    if (next.changed) transaction.jobs.push_back(std::move(next.job));
  }
  RETURN_IF_ERROR(store.Commit(transaction));
  RETURN_IF_ERROR(store.SkipNumbers(kSkipped));
  return restored;
}

absl::StatusOr<Restored> Prepare(const RestoreOptions& options, const std::string& fresh,
                                 int64_t unix_ms) {
  RETURN_IF_ERROR(CopyFiles(options.copy, fresh));
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteStore> store, SqliteStore::OpenCopy(fresh));
  return PassNumbers(*store, unix_ms);
}

// Whoever restores is often root, and the coordinator is not.
absl::Status GiveToOwnerOf(const std::string& folder, const std::string& path) {
  struct stat owner = {};
  if (stat(folder.c_str(), &owner) != 0) return FileError(errno, "look at", folder);
  for (const char* ending : {"", "-wal", "-shm", ".used"}) {
    const std::string file = path + ending;
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    if (lchown(file.c_str(), owner.st_uid, owner.st_gid) != 0 && geteuid() == 0)
      return FileError(errno, "change the owner of", file);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Restored> RestoreStore(const RestoreOptions& options, const Clock& clock) {
  const std::string path = options.state_directory + "/state.db";
  const std::string fresh = path + ".restored";
  std::error_code error;
  if (!fs::is_regular_file(options.copy, error))
    return absl::NotFoundError(absl::StrCat("no file ", options.copy));
  if (fs::file_size(options.copy, error) == 0)
    return absl::DataLossError(absl::StrCat(options.copy, " is empty, which no store is"));
  RETURN_IF_ERROR(MakeDirectories(options.state_directory));
  RETURN_IF_ERROR(CheckPlace(path, options.replace));
  Remove(fresh);
  const auto remove_fresh = absl::MakeCleanup([&fresh] { Remove(fresh); });
  absl::StatusOr<Restored> restored = Prepare(options, fresh, clock.UnixMillis());
  if (!restored.ok()) {
    return absl::Status(
        restored.status().code(),
        absl::StrCat(options.copy, " is not restored: ", Absl(Std(restored.status().message()))));
  }
  ASSIGN_OR_RETURN(restored->moved_to, MoveAside(path));
  RETURN_IF_ERROR(Rename(fresh, path));
  RETURN_IF_ERROR(SqliteStore::Open(path).status());  // as the coordinator will; marks it as used
  RETURN_IF_ERROR(GiveToOwnerOf(options.state_directory, path));
  return restored;
}

}  // namespace terrace
