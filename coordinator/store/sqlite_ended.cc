// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "coordinator/store/sqlite_query.h"

// Jobs that have ended, in short: of each a row beside the job itself. An older coordinator does
// not know of the rows. What it ended meanwhile has none, and so is still among the active jobs of
// a newer one, which sees there that it has ended.
namespace terrace {
namespace {

// What `filter` says, as a WHERE clause whose parameters are bound in this order: owner, array,
// text. States are numbers of ours, not text from outside.
std::string WhereOf(const JobFilter& filter) {
  std::string where = "number < ?";
  if (!filter.states.empty())
    absl::StrAppend(&where, " AND state IN (", absl::StrJoin(filter.states, ", "), ")");
  if (!filter.owner.empty()) absl::StrAppend(&where, " AND owner = ?");
  if (!filter.array.empty()) absl::StrAppend(&where, " AND array <> '' AND array = ?");
  if (!filter.text.empty()) absl::StrAppend(&where, " AND instr(words, ?) > 0");
  return where;
}

}  // namespace

absl::Status SqliteStore::WriteEnded(const v1::JobSummary& job) {
  const std::string words = WordsOf(job), bytes = job.SerializeAsString();
  Query write(*this,
              "INSERT OR REPLACE INTO ended_jobs (number, id, owner, array, state, words, data) "
              "VALUES (?, ?, ?, ?, ?, ?, ?)");
  write.Int(job.number()).Text(job.id()).Text(job.owner()).Text(job.array());
  return write.Int(job.state()).Text(words).Blob(bytes).Run("writing");
}

// The ids are compared in two indexes: what is large of jobs that have ended is not read.
absl::StatusOr<std::vector<v1::Job>> SqliteStore::ListActiveJobs() const {
  absl::MutexLock lock(&mutex_);
  Query query(*this,
              "SELECT data FROM jobs WHERE id IN "
              "(SELECT id FROM jobs EXCEPT SELECT id FROM ended_jobs) ORDER BY number");
  std::vector<v1::Job> jobs;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Next("reading"));
    if (!more) return jobs;
    RETURN_IF_ERROR(query.ColumnMessage(0, &jobs.emplace_back()));
  }
}

absl::StatusOr<std::vector<v1::JobSummary>> SqliteStore::ListEnded(const JobFilter& filter,
                                                                   int64_t before,
                                                                   int64_t limit) const {
  const std::string text = absl::AsciiStrToLower(filter.text);
  absl::MutexLock lock(&mutex_);
  Query query(*this, absl::StrCat("SELECT data FROM ended_jobs WHERE ", WhereOf(filter),
                                  " ORDER BY number DESC LIMIT ?"));
  query.Int(before);
  for (const std::string* value : {&filter.owner, &filter.array, &text}) {
    if (!value->empty()) query.Text(*value);
  }
  query.Int(limit);
  std::vector<v1::JobSummary> jobs;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Next("reading"));
    if (!more) return jobs;
    RETURN_IF_ERROR(query.ColumnMessage(0, &jobs.emplace_back()));
  }
}

absl::StatusOr<std::map<v1::JobState, int64_t>> SqliteStore::CountEnded(
    const JobFilter& filter) const {
  const std::string text = absl::AsciiStrToLower(filter.text);
  absl::MutexLock lock(&mutex_);
  Query query(*this, absl::StrCat("SELECT state, COUNT(*) FROM ended_jobs WHERE ", WhereOf(filter),
                                  " GROUP BY state"));
  query.Int(INT64_MAX);
  for (const std::string* value : {&filter.owner, &filter.array, &text}) {
    if (!value->empty()) query.Text(*value);
  }
  std::map<v1::JobState, int64_t> counts;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Next("reading"));
    if (!more) return counts;
    counts[static_cast<v1::JobState>(query.ColumnInt(0))] = query.ColumnInt(1);
  }
}

}  // namespace terrace
