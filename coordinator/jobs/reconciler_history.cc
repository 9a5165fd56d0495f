// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/jobs/reconciler.h"

// What is shown of jobs beside what decides about them: rows of lists, and each job's life.
//
// A history is written from time to time only. A coordinator that starts takes what came after from
// the events, which are written at once.
namespace terrace {

std::vector<JobRow> Reconciler::Rows() const {
  std::vector<JobRow> rows;
  rows.reserve(ended_.size() + jobs_.size());
  for (const auto& [id, row] : ended_) rows.push_back(row);
  for (const auto& [id, entry] : jobs_) rows.push_back(RowOf(entry.job));
  std::sort(rows.begin(), rows.end(),
            [](const JobRow& a, const JobRow& b) { return a.number < b.number; });
  return rows;
}

absl::StatusOr<v1::JobHistory> Reconciler::HistoryOf(std::string_view id) const {
  const auto found = jobs_.find(id);
  if (found != jobs_.end()) return found->second.history.Message();
  RETURN_IF_ERROR(Get(id).status());
  ASSIGN_OR_RETURN(const std::string bytes, store_.GetHistory(id));
  v1::JobHistory history;
  if (!history.ParseFromString(bytes)) {
    return absl::DataLossError(absl::StrCat("the history of job ", Absl(id), " is damaged"));
  }
  return history;
}

void Reconciler::LoadHistory(Entry& entry) const {
  const std::string& id = entry.job.id();
  const absl::StatusOr<std::string> bytes = store_.GetHistory(id);
  v1::JobHistory history;
  if (bytes.ok() && history.ParseFromString(*bytes)) entry.history = History(history);
  const auto events = store_.Events(id, entry.history.last_sequence(), kEventsKeptPerJob);
  if (!bytes.ok() || !events.ok()) {
    log::Warn("job ", id, " goes on without its earlier curves: ",
              (bytes.ok() ? events.status() : bytes.status()).message());
    return;
  }
  for (const v1::JobEvent& event : *events) entry.history.Add(event);
}

v1::GetMemoryResponse Reconciler::MemoryOf(const v1::Job& job) const {
  v1::GetMemoryResponse response;
  for (const Cluster::Report& report : cluster_.Reports()) {
    if (report.report->job() == job.id() && report.report->epoch() == job.epoch() &&
        report.report->has_memory())
      *response.add_ranks() = report.report->memory();
  }
  std::sort(response.mutable_ranks()->begin(), response.mutable_ranks()->end(),
            [](const v1::RankMemory& a, const v1::RankMemory& b) { return a.rank() < b.rank(); });
  return response;
}

void Reconciler::TakeMemory(Entry& entry) {
  const int64_t now = clock_.MonotonicNanos();
  if (entry.memory_taken_ns != 0 && now - entry.memory_taken_ns < timing_.memory_ns) return;
  entry.memory_taken_ns = now;
  entry.history.AddMemory(clock_.UnixMillis(), MemoryOf(entry.job));
  entry.history_unwritten = true;
}

void Reconciler::FlushHistories() {
  const int64_t now = clock_.MonotonicNanos();
  Transaction transaction{.durability = Durability::kBuffered};
  std::vector<Entry*> written;
  for (auto& [id, entry] : jobs_) {
    if (!entry.history_unwritten || now - entry.history_written_ns < timing_.history_ns) continue;
    transaction.histories.push_back({id, entry.history.Message().SerializeAsString()});
    written.push_back(&entry);
  }
  if (written.empty()) return;
  if (absl::Status status = Commit(transaction); !status.ok()) {
    log::Warn("curves of ", written.size(), " jobs are not stored: ", status.message());
  }
  for (Entry* entry : written) {  // also of those that failed: the events are there
    entry->history_unwritten = false;
    entry->history_written_ns = now;
  }
}

}  // namespace terrace
