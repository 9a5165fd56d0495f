// A Store in one SQLite file: the embedded default.
//
// Write-ahead log; a kSynced commit is an fsync, a kBuffered one is not. The file is held
// exclusively while open, so that two coordinators never share a state directory; the operating
// system drops the lock of a process that was killed. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/store.h"

struct sqlite3;
struct sqlite3_stmt;

namespace terrace {

// A copy of a store that is being made. Borrows the store. Thread-compatible.
class StoreCopy {
 public:
  virtual ~StoreCopy() = default;
  // Copies some more, about a megabyte; true: the copy is whole, with all that was committed until
  // now. Other calls of the store may come in between.
  virtual absl::StatusOr<bool> Step() = 0;
};

class SqliteStore final : public Store {
 public:
  // Opens or creates the file. UNAVAILABLE: another process holds it. DATA_LOSS: it is damaged or
  // no store. PERMISSION_DENIED: it cannot be written. FAILED_PRECONDITION: a newer Terrace wrote
  // it.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(std::string_view path);

  // Opens a copy of a store; a file that is none is not made one. DATA_LOSS, FAILED_PRECONDITION as
  // above.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenCopy(std::string_view path);
  // The next job gets a number that is larger by so much than it would have been.
  absl::Status SkipNumbers(int64_t count);
  // Into a new file with the mode 0600, in place of one that is there. The file is a store once the
  // copy is whole.
  absl::StatusOr<std::unique_ptr<StoreCopy>> BeginCopy(std::string_view path);

  absl::Status Commit(const Transaction& transaction) override;
  absl::StatusOr<v1::Job> GetJob(std::string_view id) const override;
  absl::StatusOr<std::vector<v1::Job>> ListJobs() const override;
  absl::StatusOr<std::vector<v1::Job>> ListActiveJobs() const override;
  absl::StatusOr<std::vector<v1::JobSummary>> ListEnded(const JobFilter& filter, int64_t before,
                                                        int64_t limit) const override;
  absl::StatusOr<std::map<v1::JobState, int64_t>> CountEnded(
      const JobFilter& filter) const override;
  absl::StatusOr<std::string> GetProgram(std::string_view sha256) const override;
  absl::StatusOr<std::vector<v1::JobEvent>> Events(std::string_view job, int64_t after_sequence,
                                                   int64_t limit) const override;
  absl::StatusOr<int64_t> LastSequence(std::string_view job) const override;
  absl::StatusOr<std::string> GetHistory(std::string_view job) const override;
  absl::StatusOr<std::vector<LearnedMemory>> Learned() const override;
  absl::StatusOr<std::vector<v1::Drain>> Drains() const override;
  absl::StatusOr<std::vector<OwnerUsage>> Usages() const override;
  absl::StatusOr<int64_t> LastNumber() const override;

 private:
  class Copy;
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenFile(std::string_view path);
  struct CloseDatabase {
    void operator()(sqlite3* database) const;
  };
  struct FinalizeStatement {
    void operator()(sqlite3_stmt* statement) const;
  };
  using Database = std::unique_ptr<sqlite3, CloseDatabase>;
  using StatementPtr = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;
  class Query;

  SqliteStore(std::string_view path, Database database)
      : path_(path), database_(std::move(database)) {}

  absl::Status Initialise() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckFormat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Execute(const char* sql) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteAll(const Transaction& transaction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteJob(const v1::Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteProgram(const StoredProgram& program) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteEvents(const std::vector<v1::JobEvent>& events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteHistory(const StoredHistory& history) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteDrain(const v1::Drain& drain) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteEnded(const v1::JobSummary& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteUsage(const OwnerUsage& usage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteLearned(const LearnedMemory& learned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Kept from its first use on; null when it cannot be prepared.
  sqlite3_stmt* Prepared(std::string_view sql) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Unreadable() const;
  absl::Status Error(std::string_view doing) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  mutable absl::Mutex mutex_;
  Database database_ ABSL_GUARDED_BY(mutex_);
  mutable std::map<std::string, StatementPtr, std::less<>> statements_
      ABSL_GUARDED_BY(mutex_);  // by their text
  Durability durability_ ABSL_GUARDED_BY(mutex_) = Durability::kSynced;
};

}  // namespace terrace
