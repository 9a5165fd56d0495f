// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/jobs/reconciler.h"

// This is the part of a job that is shown and that decides nothing: its history.
//
// A history is written from time to time only. A coordinator that starts takes what came after from
// the events, which are written at once.
namespace terrace {
namespace {

constexpr int64_t kHistoryLookNs = 1'000'000'000;
constexpr size_t kHistoriesPerLook = 32;
// So many are written in one turn of Timing::history_ns; with more a turn is longer.
constexpr size_t kHistoriesAtATime = 500;
constexpr double kFragmentedMost = 0.3;  // of what an allocator reserved

// A planned arena has no fragments: the plan says what of it an instruction leaves free.
bool AllocatesAtRunTime(const v1::AllocatorStats& allocator) {
  return !allocator.mode().empty() && allocator.mode() != "planned";
}

}  // namespace

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
  std::set<std::string_view> workers;
  for (const v1::Placement::Rank& rank : job.placement().ranks()) workers.insert(rank.worker());
  for (const std::string_view worker : workers) {
    for (const v1::RankReport& report : cluster_.RanksOn(worker)) {
      if (report.job() == job.id() && report.epoch() == job.epoch() && report.has_memory())
        *response.add_ranks() = report.memory();
    }
  }
  std::sort(response.mutable_ranks()->begin(), response.mutable_ranks()->end(),
            [](const v1::RankMemory& a, const v1::RankMemory& b) { return a.rank() < b.rank(); });
  return response;
}

void Reconciler::TakeMemory(Entry& entry) {
  const int64_t now = clock_.MonotonicNanos();
  if (entry.memory_taken_ns != 0 && now - entry.memory_taken_ns < timing_.memory_ns) return;
  entry.memory_taken_ns = now;
  const v1::GetMemoryResponse memory = MemoryOf(entry.job);
  entry.history.AddMemory(clock_.UnixMillis(), memory);
  TellFragmentation(entry, memory);
  entry.history_unwritten = true;
}

// Once a job. Reports are looked at when the gang has trained for a while: before its first step
// they show what was reserved for it, and nothing in it.
void Reconciler::TellFragmentation(Entry& entry, const v1::GetMemoryResponse& memory) {
  const int64_t trained_ms = clock_.UnixMillis() - entry.training_since_unix_ms;
  if (entry.training_epoch != entry.job.epoch() || trained_ms < timing_.memory_ns / 1'000'000)
    return;
  for (const v1::RankMemory& rank : memory.ranks()) {
    const v1::AllocatorStats& allocator = rank.allocator();
    const auto reserved = static_cast<double>(allocator.reserved_bytes());
    if (entry.fragmentation_told || reserved <= 0 || !AllocatesAtRunTime(allocator)) continue;
    const double fragmented = 1 - static_cast<double>(allocator.allocated_bytes()) / reserved;
    if (fragmented <= kFragmentedMost) continue;
    entry.fragmentation_told = true;
    v1::JobEvent event;
    event.set_job(entry.job.id());
    event.set_epoch(entry.job.epoch());
    event.set_unix_ms(clock_.UnixMillis());
    event.mutable_warning()->set_rank(rank.rank());
    const std::string retries =
        allocator.retries() > 0 ? absl::StrCat(", and it had to give memory back and try again ",
                                               allocator.retries(), " times")
                                : "";
    event.mutable_warning()->set_text(absl::StrFormat(
        "%.0f %% of the memory that the %s allocator reserved is free when most is in use, but "
        "not in one piece%s; layout.allocator: %s",
        100 * fragmented, allocator.mode(), retries,
        allocator.mode() == "caching" ? "expandable fragments less, planned not at all"
                                      : "planned does not fragment"));
    log::Warn("job ", entry.job.id(), ", rank ", rank.rank(), ": ", event.warning().text());
    StoreEvent(event);
  }
}

// Of many jobs each is written less often: what it lacks is in the events, which are written at
// once.
void Reconciler::FlushHistories() {
  const int64_t now = clock_.MonotonicNanos();
  if (now < history_look_ns_) return;
  history_look_ns_ = now + kHistoryLookNs;
  const int64_t apart =
      timing_.history_ns * static_cast<int64_t>(1 + index_.with_gang().size() / kHistoriesAtATime);
  Transaction transaction{.durability = Durability::kBuffered};
  std::vector<Entry*> written;
  for (auto& [id, entry] : jobs_) {
    if (written.size() == kHistoriesPerLook) break;  // the others come a second later
    if (!entry.history_unwritten || now - entry.history_written_ns < apart) continue;
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
