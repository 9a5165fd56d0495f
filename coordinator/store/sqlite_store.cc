// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite_store.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/store/sqlite_query.h"

namespace terrace {
namespace {

constexpr int kFormat = 1;  // of the tables below

// An event of each running job changes a page of its own, which is written whole, and once more
// when the log goes into the file: small pages, and a log that is long enough to have most of them
// many times, write less. A store that is there keeps the size of its pages.
constexpr int kPageBytes = 1024, kLogPages = 16'000;

// A file beside the store that says that there was one.
constexpr char kUsedEnding[] = ".used";
constexpr char kUsedText[] =
    "There is a store beside this file. Where it is missing the coordinator does not start: its "
    "jobs would be lost without a word.\n";

constexpr char kTables[] = R"sql(
  CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, version INTEGER NOT NULL, data BLOB NOT NULL);
  CREATE TABLE IF NOT EXISTS programs (sha256 TEXT PRIMARY KEY, data BLOB NOT NULL);
  CREATE TABLE IF NOT EXISTS events (
    job TEXT NOT NULL, sequence INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (job, sequence)) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS learned_memory (
    worker TEXT NOT NULL, shape TEXT NOT NULL, external_bytes INTEGER NOT NULL, PRIMARY KEY (worker, shape)) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS histories (job TEXT PRIMARY KEY, data BLOB NOT NULL);
  CREATE TABLE IF NOT EXISTS drains (node TEXT PRIMARY KEY, data BLOB NOT NULL);
  CREATE TABLE IF NOT EXISTS usages (
    owner TEXT PRIMARY KEY, device_ms INTEGER NOT NULL, unix_ms INTEGER NOT NULL) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS ended_jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, array TEXT NOT NULL, state INTEGER NOT NULL,
    words TEXT NOT NULL, data BLOB NOT NULL);
  CREATE INDEX IF NOT EXISTS ended_jobs_of_state ON ended_jobs (state, number);
  CREATE INDEX IF NOT EXISTS ended_jobs_of_owner ON ended_jobs (owner, number, state);
  CREATE INDEX IF NOT EXISTS ended_jobs_of_array ON ended_jobs (array, number, state) WHERE array <> '';
)sql";

absl::StatusCode CodeOf(int sqlite_code) {
  switch (sqlite_code & 0xff) {  // the primary code
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::StatusCode::kUnavailable;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::StatusCode::kDataLoss;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      return absl::StatusCode::kPermissionDenied;
    case SQLITE_FULL:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kInternal;
  }
}

std::string_view WayOut(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
      return "; another coordinator uses this state directory: stop it or choose another "
             "--state-dir";
    case absl::StatusCode::kDataLoss:
      return "; the file is damaged or not a Terrace store: move it away or restore a copy";
    case absl::StatusCode::kPermissionDenied:
      return "; the folder must exist and be writable by this user";
    case absl::StatusCode::kResourceExhausted:
      return "; free space on that disk";
    default:
      return "";
  }
}

// Tables of the database in `path`; -1 where that cannot be told, which Open() will say better.
// Looks at the file alone, without locks or its log: another program's database stays as it is.
int CountTables(const std::string& path, bool ours) {
  const std::string uri =
      absl::StrCat("file:", absl::StrReplaceAll(path, {{"%", "%25"}, {"?", "%3f"}, {"#", "%23"}}),
                   "?immutable=1");
  sqlite3* database = nullptr;
  int tables = 0;
  const auto count = [](void* found, int, char**, char**) {
    ++*static_cast<int*>(found);
    return 0;
  };
  sqlite3_open_v2(uri.c_str(), &database,
                  SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI, nullptr);
  const int code = sqlite3_exec(database,
                                ours ? "SELECT 1 FROM sqlite_master WHERE name = 'jobs'"
                                     : "SELECT 1 FROM sqlite_master WHERE type = 'table'",
                                count, &tables, nullptr);
  sqlite3_close(database);
  return code == SQLITE_OK ? tables : -1;
}

// Of a file that is there.
absl::Status CheckIsStore(std::string_view path_view) {
  const std::string path(path_view);
  // As a FIFO it would be waited for, as a device read without an end.
  if (const absl::Status file = OpenRegularFile(path).status(); absl::IsInvalidArgument(file))
    return file;
  std::error_code error;
  std::string problem;
  if (std::filesystem::file_size(path, error) == 0) {
    problem = " is empty, which no store is: its jobs are lost";
  } else if (!std::filesystem::exists(path + "-wal", error) &&
             CountTables(path, /*ours=*/true) == 0) {  // a log may hold tables that the file lacks
    problem = CountTables(path, /*ours=*/false) > 0
                  ? " is another program's database: it has no table of jobs"
                  : " is a database without tables, which no store is: its jobs are lost";
  }
  if (problem.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, problem, Absl(WayOut(absl::StatusCode::kDataLoss)),
                                          ", or remove it to begin without jobs"));
}

}  // namespace

void SqliteStore::CloseDatabase::operator()(sqlite3* database) const { sqlite3_close(database); }
void SqliteStore::FinalizeStatement::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

sqlite3_stmt* SqliteStore::Prepared(std::string_view sql) const {
  const auto found = statements_.find(sql);
  if (found != statements_.end()) return found->second.get();
  sqlite3_stmt* statement = nullptr;
  sqlite3_prepare_v3(database_.get(), sql.data(), static_cast<int>(sql.size()),
                     SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (statement != nullptr) statements_[std::string(sql)].reset(statement);
  return statement;
}

// A store is made under another name and renamed when it is whole, so that an empty file of its
// name is the remains of one: who began anew there would forget every job without a word.
absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(std::string_view path) {
  std::error_code error;
  const std::string used = absl::StrCat(Absl(path), kUsedEnding);
  if (!std::filesystem::exists(path, error)) {
    if (std::filesystem::exists(used, error)) {
      return absl::DataLossError(absl::StrCat(
          Absl(path), " is missing, but this directory held one: restore a copy, or remove ", used,
          " to begin without jobs"));
    }
    const std::string fresh = absl::StrCat(Absl(path), ".new");
    std::filesystem::remove(fresh, error);
    RETURN_IF_ERROR(OpenFile(fresh).status());  // closed again: its log is in the file
    // Specs and paths are in it, whatever the umask is. Its log gets the same mode.
    if (chmod(fresh.c_str(), 0600) != 0) return FileError(errno, "change the mode of", fresh);
    // A link, not a rename: it does not replace the store that another coordinator has just made.
    std::filesystem::create_hard_link(fresh, path, error);
    const bool linked = !error || error == std::errc::file_exists;
    if (!linked) RETURN_IF_ERROR(Rename(fresh, std::string(path)));  // a file system without links
    std::filesystem::remove(fresh, error);
  } else {
    RETURN_IF_ERROR(CheckIsStore(path));
  }
  auto store = OpenFile(path);
  // After the store is there: who comes here meanwhile finds it.
  if (store.ok() && !std::filesystem::exists(used, error))
    RETURN_IF_ERROR(WriteSyncedFile(used, kUsedText));
  return store;
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::OpenFile(std::string_view path) {
  sqlite3* raw = nullptr;
  const std::string file(path);
  sqlite3_open_v2(file.c_str(), &raw,
                  SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<SqliteStore> store(new SqliteStore(path, Database(raw)));
  absl::MutexLock lock(&store->mutex_);
  RETURN_IF_ERROR(store->Initialise());
  return store;
}

absl::Status SqliteStore::Initialise() {
  if (sqlite3_errcode(database_.get()) != SQLITE_OK) return Error("opening");
  // Exclusive before the journal mode: then the log needs no shared memory and the lock is held
  // from the first access on.
  RETURN_IF_ERROR(Execute("PRAGMA locking_mode = EXCLUSIVE"));
  RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA page_size = ", kPageBytes).c_str()));
  RETURN_IF_ERROR(Execute("PRAGMA journal_mode = WAL"));
  RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA wal_autocheckpoint = ", kLogPages).c_str()));
  RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
  RETURN_IF_ERROR(CheckFormat());
  // BEGIN EXCLUSIVE fails right here, not at the first job, when the file is read-only or held by
  // somebody else.
  RETURN_IF_ERROR(Execute("BEGIN EXCLUSIVE"));
  RETURN_IF_ERROR(Execute(kTables));
  RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA user_version = ", kFormat).c_str()));
  return Execute("COMMIT");
}

absl::Status SqliteStore::CheckFormat() {
  Query version(*this, "PRAGMA user_version");
  ASSIGN_OR_RETURN(const bool has_version, version.Next("reading the format of"));
  const int64_t format = has_version ? version.ColumnInt(0) : 0;
  if (format > kFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " has format ", format, ", this coordinator reads up to ", kFormat,
                     ": a newer Terrace wrote it, start that version"));
  }
  Query check(*this, "PRAGMA quick_check(1)");
  ASSIGN_OR_RETURN(const bool has_answer, check.Next("checking"));
  if (has_answer && check.ColumnBlob(0) == "ok") return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": ",
                                          has_answer ? Absl(check.ColumnBlob(0)) : "no answer",
                                          Absl(WayOut(absl::StatusCode::kDataLoss))));
}

absl::Status SqliteStore::Error(std::string_view doing) const {
  const absl::StatusCode code = CodeOf(sqlite3_extended_errcode(database_.get()));
  return absl::Status(code, absl::StrCat(Absl(doing), " ", path_, ": ",
                                         sqlite3_errmsg(database_.get()), Absl(WayOut(code))));
}

absl::Status SqliteStore::Unreadable() const {
  return absl::DataLossError(absl::StrCat(path_, ": a stored message cannot be read",
                                          Absl(WayOut(absl::StatusCode::kDataLoss))));
}

absl::Status SqliteStore::Execute(const char* sql) const {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return Error("writing");
}

absl::Status SqliteStore::Commit(const Transaction& transaction) {
  absl::MutexLock lock(&mutex_);
  if (transaction.durability != durability_) {  // may change only outside a transaction
    const bool synced = transaction.durability == Durability::kSynced;
    RETURN_IF_ERROR(Execute(synced ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL"));
    durability_ = transaction.durability;
  }
  RETURN_IF_ERROR(Execute("BEGIN"));
  absl::Status status = WriteAll(transaction);
  if (status.ok()) status = Execute("COMMIT");
  // A failed COMMIT may leave the transaction open, a full disk may have rolled it back already.
  if (!status.ok() && sqlite3_get_autocommit(database_.get()) == 0) {
    Execute("ROLLBACK").IgnoreError();
  }
  return status;
}

absl::Status SqliteStore::WriteAll(const Transaction& transaction) {
  for (const v1::Job& job : transaction.jobs) RETURN_IF_ERROR(WriteJob(job));
  for (const StoredProgram& program : transaction.programs) RETURN_IF_ERROR(WriteProgram(program));
  RETURN_IF_ERROR(WriteEvents(transaction.events));
  for (const LearnedMemory& one : transaction.learned) RETURN_IF_ERROR(WriteLearned(one));
  for (const StoredHistory& one : transaction.histories) RETURN_IF_ERROR(WriteHistory(one));
  for (const v1::Drain& drain : transaction.drains) RETURN_IF_ERROR(WriteDrain(drain));
  for (const std::string& node : transaction.undrained) {
    Query remove(*this, "DELETE FROM drains WHERE node = ?");
    RETURN_IF_ERROR(remove.Text(node).Run("writing"));
  }
  for (const OwnerUsage& usage : transaction.usages) RETURN_IF_ERROR(WriteUsage(usage));
  for (const v1::JobSummary& job : transaction.ended) RETURN_IF_ERROR(WriteEnded(job));
  return absl::OkStatus();
}

absl::Status SqliteStore::WriteJob(const v1::Job& job) {
  int64_t stored = 0;
  {
    Query version(*this, "SELECT version FROM jobs WHERE id = ?");
    ASSIGN_OR_RETURN(const bool found, version.Text(job.id()).Next("reading"));
    if (found) stored = version.ColumnInt(0);
  }
  if (stored != job.version()) {
    return absl::AbortedError(absl::StrCat("job ", job.id(), " is at version ", stored,
                                           " in the store, not at ", job.version()));
  }
  v1::Job next = job;
  next.set_version(stored + 1);
  const std::string bytes = next.SerializeAsString();
  if (stored == 0) {
    Query insert(*this, "INSERT INTO jobs (id, version, data) VALUES (?, ?, ?)");
    return insert.Text(job.id()).Int(next.version()).Blob(bytes).Run("writing");
  }
  Query update(*this, "UPDATE jobs SET version = ?, data = ? WHERE id = ?");
  return update.Int(next.version()).Blob(bytes).Text(job.id()).Run("writing");
}

absl::Status SqliteStore::WriteProgram(const StoredProgram& program) {
  Query insert(*this, "INSERT OR IGNORE INTO programs (sha256, data) VALUES (?, ?)");
  return insert.Text(program.sha256).Blob(program.bytes).Run("writing");
}

absl::Status SqliteStore::WriteEvents(const std::vector<v1::JobEvent>& events) {
  if (events.empty()) return absl::OkStatus();
  std::map<std::string_view, int64_t> newest;  // by job
  Query insert(*this, "INSERT OR REPLACE INTO events (job, sequence, data) VALUES (?, ?, ?)");
  for (const v1::JobEvent& event : events) {
    const std::string bytes = event.SerializeAsString();
    insert.Again().Text(event.job()).Int(event.sequence()).Blob(bytes);
    RETURN_IF_ERROR(insert.Run("writing"));
    newest[event.job()] = event.sequence();
  }
  Query trim(*this, "DELETE FROM events WHERE job = ? AND sequence <= ?");
  for (const auto& [job, sequence] : newest) {
    trim.Again().Text(job).Int(sequence - kEventsKeptPerJob);
    RETURN_IF_ERROR(trim.Run("writing"));
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::WriteLearned(const LearnedMemory& learned) {
  Query write(*this,
              "INSERT INTO learned_memory (worker, shape, external_bytes) VALUES (?, ?, ?) "
              "ON CONFLICT DO UPDATE SET external_bytes = "
              "MAX(external_bytes, excluded.external_bytes)");
  write.Text(learned.worker).Text(learned.shape).Int(learned.external_bytes);
  return write.Run("writing");
}

absl::Status SqliteStore::WriteHistory(const StoredHistory& history) {
  Query write(*this, "INSERT OR REPLACE INTO histories (job, data) VALUES (?, ?)");
  return write.Text(history.job).Blob(history.bytes).Run("writing");
}

absl::Status SqliteStore::WriteDrain(const v1::Drain& drain) {
  const std::string bytes = drain.SerializeAsString();
  Query write(*this, "INSERT OR REPLACE INTO drains (node, data) VALUES (?, ?)");
  return write.Text(drain.node()).Blob(bytes).Run("writing");
}

absl::Status SqliteStore::WriteUsage(const OwnerUsage& usage) {
  Query write(*this, "INSERT OR REPLACE INTO usages (owner, device_ms, unix_ms) VALUES (?, ?, ?)");
  return write.Text(usage.owner).Int(usage.device_ms).Int(usage.unix_ms).Run("writing");
}

absl::StatusOr<v1::Job> SqliteStore::GetJob(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  Query query(*this, "SELECT data FROM jobs WHERE id = ?");
  ASSIGN_OR_RETURN(const bool found, query.Text(id).Next("reading"));
  if (!found) return absl::NotFoundError(absl::StrCat("no job ", Absl(id)));
  v1::Job job;
  RETURN_IF_ERROR(query.ColumnMessage(0, &job));
  return job;
}

absl::StatusOr<std::vector<v1::Job>> SqliteStore::ListJobs() const {
  absl::MutexLock lock(&mutex_);
  Query query(*this, "SELECT data FROM jobs ORDER BY number");
  std::vector<v1::Job> jobs;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Next("reading"));
    if (!more) return jobs;
    RETURN_IF_ERROR(query.ColumnMessage(0, &jobs.emplace_back()));
  }
}

absl::StatusOr<std::string> SqliteStore::GetProgram(std::string_view sha256) const {
  absl::MutexLock lock(&mutex_);
  Query query(*this, "SELECT data FROM programs WHERE sha256 = ?");
  ASSIGN_OR_RETURN(const bool found, query.Text(sha256).Next("reading"));
  if (!found) return absl::NotFoundError(absl::StrCat("no program ", Absl(sha256)));
  return std::string(query.ColumnBlob(0));
}

absl::StatusOr<std::vector<v1::JobEvent>> SqliteStore::Events(std::string_view job,
                                                              int64_t after_sequence,
                                                              int64_t limit) const {
  absl::MutexLock lock(&mutex_);
  Query query(*this,
              "SELECT data FROM events WHERE job = ? AND sequence > ? ORDER BY sequence LIMIT ?");
  query.Text(job).Int(after_sequence).Int(limit);
  std::vector<v1::JobEvent> events;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Next("reading"));
    if (!more) return events;
    RETURN_IF_ERROR(query.ColumnMessage(0, &events.emplace_back()));
  }
}

absl::StatusOr<int64_t> SqliteStore::LastSequence(std::string_view job) const {
  absl::MutexLock lock(&mutex_);
  Query query(*this, "SELECT MAX(sequence) FROM events WHERE job = ?");
  ASSIGN_OR_RETURN(const bool found, query.Text(job).Next("reading"));
  return found ? query.ColumnInt(0) : 0;
}

absl::StatusOr<std::string> SqliteStore::GetHistory(std::string_view job) const {
  absl::MutexLock lock(&mutex_);
  Query query(*this, "SELECT data FROM histories WHERE job = ?");
  ASSIGN_OR_RETURN(const bool found, query.Text(job).Next("reading"));
  return found ? std::string(query.ColumnBlob(0)) : "";
}

absl::StatusOr<std::vector<LearnedMemory>> SqliteStore::Learned() const {
  absl::MutexLock lock(&mutex_);
  Query query(*this,
              "SELECT worker, shape, external_bytes FROM learned_memory ORDER BY worker, shape");
  std::vector<LearnedMemory> all;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Next("reading"));
    if (!more) return all;
    all.push_back({.worker = std::string(query.ColumnBlob(0)),
                   .shape = std::string(query.ColumnBlob(1)),
                   .external_bytes = query.ColumnInt(2)});
  }
}

absl::StatusOr<std::vector<v1::Drain>> SqliteStore::Drains() const {
  absl::MutexLock lock(&mutex_);
  Query query(*this, "SELECT data FROM drains ORDER BY node");
  std::vector<v1::Drain> drains;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Next("reading"));
    if (!more) return drains;
    RETURN_IF_ERROR(query.ColumnMessage(0, &drains.emplace_back()));
  }
}

absl::StatusOr<std::vector<OwnerUsage>> SqliteStore::Usages() const {
  absl::MutexLock lock(&mutex_);
  Query query(*this, "SELECT owner, device_ms, unix_ms FROM usages ORDER BY owner");
  std::vector<OwnerUsage> usages;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Next("reading"));
    if (!more) return usages;
    usages.push_back({.owner = std::string(query.ColumnBlob(0)),
                      .device_ms = query.ColumnInt(1),
                      .unix_ms = query.ColumnInt(2)});
  }
}

absl::StatusOr<int64_t> SqliteStore::LastNumber() const {
  absl::MutexLock lock(&mutex_);
  Query query(*this, "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'");
  ASSIGN_OR_RETURN(const bool found, query.Next("reading"));
  return found ? query.ColumnInt(0) : 0;
}

absl::Status SqliteStore::SkipNumbers(int64_t count) {
  ASSIGN_OR_RETURN(const int64_t last, LastNumber());
  absl::MutexLock lock(&mutex_);
  {
    Query clear(*this, "DELETE FROM sqlite_sequence WHERE name = 'jobs'");  // none before a job was
    RETURN_IF_ERROR(clear.Run("writing"));
  }
  Query insert(*this, "INSERT INTO sqlite_sequence (name, seq) VALUES ('jobs', ?)");
  return insert.Int(last + count).Run("writing");
}

}  // namespace terrace
