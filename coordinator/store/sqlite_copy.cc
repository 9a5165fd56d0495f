// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sqlite3.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/unique_fd.h"
#include "coordinator/store/sqlite_store.h"

// Copies of a store that is in use, by SQLite's backup API.
namespace terrace {
namespace {

constexpr int kPagesAStep = 256;

}  // namespace

class SqliteStore::Copy final : public StoreCopy {
 public:
  Copy(SqliteStore& store, Database target, std::string path)
      : store_(store), path_(std::move(path)), target_(std::move(target)) {
    absl::MutexLock lock(&store_.mutex_);
    backup_ = sqlite3_backup_init(target_.get(), "main", store_.database_.get(), "main");
  }
  ~Copy() override {
    absl::MutexLock lock(&store_.mutex_);
    if (backup_ != nullptr) sqlite3_backup_finish(backup_);
  }

  absl::StatusOr<bool> Step() override {
    absl::MutexLock lock(&store_.mutex_);
    if (backup_ == nullptr) return Failed(sqlite3_errcode(target_.get()));
    const int code = sqlite3_backup_step(backup_, kPagesAStep);
    if (code == SQLITE_OK) return false;
    if (code != SQLITE_DONE) return Failed(code);
    const int finished = sqlite3_backup_finish(std::exchange(backup_, nullptr));
    if (finished != SQLITE_OK) return Failed(finished);
    return true;
  }

 private:
  absl::Status Failed(int code) const {
    const bool is_full = (code & 0xff) == SQLITE_FULL || (code & 0xff) == SQLITE_IOERR;
    return absl::Status(
        is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
        absl::StrCat("copying the store to ", path_, ": ", sqlite3_errstr(code),
                     is_full ? "; free space on that disk" : ""));
  }

  SqliteStore& store_;
  const std::string path_;
  Database target_;
  sqlite3_backup* backup_ = nullptr;
};

absl::StatusOr<std::unique_ptr<StoreCopy>> SqliteStore::BeginCopy(std::string_view path) {
  std::string file(path);
  std::error_code error;
  for (const char* ending : {"", "-wal", "-shm"}) std::filesystem::remove(file + ending, error);
  // Nobody else may read it at any time.
  const UniqueFd made(open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!made.valid()) return FileError(errno, "create", file);
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(file.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database target(raw);
  if (code != SQLITE_OK) {
    return absl::PermissionDeniedError(absl::StrCat("opening ", file, ": ", sqlite3_errstr(code),
                                                    "; its folder must be there and writable"));
  }
  // A copy that a crash damages is made again: nothing needs to be synced or undone.
  sqlite3_exec(raw, "PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF", nullptr, nullptr,
               nullptr);
  return std::make_unique<Copy>(*this, std::move(target), std::move(file));
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::OpenCopy(std::string_view path) {
  const std::string file(path);
  sqlite3* raw = nullptr;
  sqlite3_open_v2(file.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(raw);
  int jobs = 0;
  const auto count = [](void* found, int, char**, char**) {
    ++*static_cast<int*>(found);
    return 0;
  };
  const int code =
      sqlite3_exec(raw, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'jobs'", count,
                   &jobs, nullptr);
  database.reset();
  if (code != SQLITE_OK || jobs == 0) {
    return absl::DataLossError(
        absl::StrCat(code == SQLITE_OK ? "it has no table of jobs" : sqlite3_errstr(code),
                     "; give a file that `terrace backup` wrote, or a copy of a state.db"));
  }
  return OpenFile(path);
}

}  // namespace terrace
