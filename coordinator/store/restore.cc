// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/restore.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "coordinator/store/sqlite_store.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

absl::Status CopyFile(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("copying ", from, " to ", to, ": ", error.message()));
}

// Moves the store that is there aside, once it is certain that nobody uses it.
absl::StatusOr<std::string> MoveAside(const std::string& path, bool replace) {
  std::error_code error;
  if (!fs::exists(path, error)) return "";
  if (!replace) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is there already: with --replace it is moved aside"));
  }
  const absl::Status free = SqliteStore::Open(path).status();  // closed again, its log is in it
  if (absl::IsUnavailable(free)) return free;                  // a damaged one is moved as well
  std::string aside = path + ".before-restore";
  for (int i = 2; fs::exists(aside, error); ++i) aside = absl::StrCat(path, ".before-restore-", i);
  for (const char* ending : {"-wal", "-shm"}) {
    if (fs::exists(path + ending, error)) RETURN_IF_ERROR(Rename(path + ending, aside + ending));
  }
  RETURN_IF_ERROR(Rename(path, aside));
  return aside;
}

bool HasEnded(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

// More than jobs are submitted, or a gang restarts, between two backups.
constexpr int64_t kSkipped = 10'000;

// See RestoreStore.
absl::StatusOr<Restored> SkipNumbers(SqliteStore& store) {
  ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, store.ListJobs());
  Restored restored{.jobs = static_cast<int64_t>(jobs.size())};
  Transaction transaction;
  for (v1::Job& job : jobs) {
    if (HasEnded(job.state())) continue;
    ++restored.unfinished;
    if (job.epoch() > 0) job.set_epoch(job.epoch() + kSkipped);
    if (job.state() == v1::STARTING || job.state() == v1::RUNNING) {
      job.set_state(v1::RECOVERING);
      job.set_reason(v1::REASON_NONE);
      job.set_message(
          "the coordinator's state was restored from a backup; goes on from the newest "
          "checkpoint");
      job.clear_pause_requested();
      job.clear_resume_requested();
      job.clear_hang();
      job.clear_slow_ranks();
    }
    transaction.jobs.push_back(std::move(job));
  }
  RETURN_IF_ERROR(store.Commit(transaction));
  RETURN_IF_ERROR(store.SkipNumbers(kSkipped));
  return restored;
}

}  // namespace

absl::StatusOr<Restored> RestoreStore(const RestoreOptions& options) {
  const std::string path = options.state_directory + "/state.db";
  const std::string fresh = path + ".restored";
  std::error_code error;
  if (!fs::is_regular_file(options.copy, error))
    return absl::NotFoundError(absl::StrCat("no file ", options.copy));
  if (fs::file_size(options.copy, error) == 0)
    return absl::DataLossError(absl::StrCat(options.copy, " is empty, which no store is"));
  RETURN_IF_ERROR(MakeDirectories(options.state_directory));
  for (const char* ending : {"", "-wal", "-shm"}) fs::remove(fresh + ending, error);
  RETURN_IF_ERROR(CopyFile(options.copy, fresh));
  fs::permissions(fresh, fs::perms::owner_read | fs::perms::owner_write, error);

  Restored restored;
  {
    absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::OpenCopy(fresh);
    absl::Status status = store.status();
    if (status.ok()) {
      const absl::StatusOr<Restored> counted = SkipNumbers(**store);
      status = counted.status();
      if (status.ok()) restored = *counted;
    }
    if (!status.ok()) {
      store = status;  // closed
      for (const char* ending : {"", "-wal", "-shm"}) fs::remove(fresh + ending, error);
      return absl::Status(
          status.code(),
          absl::StrCat(options.copy, " is not restored: ", std::string(status.message())));
    }
  }
  ASSIGN_OR_RETURN(restored.moved_to, MoveAside(path, options.replace));
  RETURN_IF_ERROR(Rename(fresh, path));
  RETURN_IF_ERROR(SqliteStore::Open(path).status());  // as the coordinator will; marks it as used
  return restored;
}

}  // namespace terrace
