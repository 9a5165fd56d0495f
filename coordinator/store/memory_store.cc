// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/memory_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {

absl::Status MemoryStore::Commit(const Transaction& transaction) {
  absl::MutexLock lock(&mutex_);
  for (const v1::Job& job : transaction.jobs) {
    auto found = jobs_.find(job.id());
    const int64_t stored = found == jobs_.end() ? 0 : found->second.version();
    if (stored != job.version()) {
      return absl::AbortedError(absl::StrCat("job ", job.id(), " is at version ", stored,
                                             " in the store, not at ", job.version()));
    }
  }
  for (const v1::Job& job : transaction.jobs) {
    if (job.version() == 0) order_.push_back(job.id());
    v1::Job& stored = jobs_[job.id()];
    stored = job;
    stored.set_version(job.version() + 1);
  }
  for (const StoredProgram& program : transaction.programs) {
    programs_.try_emplace(program.sha256, program.bytes);
  }
  for (const v1::JobEvent& event : transaction.events) {
    std::deque<v1::JobEvent>& tail = events_[event.job()];
    tail.push_back(event);
    if (static_cast<int64_t>(tail.size()) > kEventsKeptPerJob) tail.pop_front();
  }
  for (const LearnedMemory& learned : transaction.learned) {
    int64_t& bytes = learned_[{learned.worker, learned.shape}];
    bytes = std::max(bytes, learned.external_bytes);
  }
  for (const StoredHistory& one : transaction.histories) histories_[one.job] = one.bytes;
  for (const v1::Drain& drain : transaction.drains) drains_[drain.node()] = drain;
  for (const std::string& node : transaction.undrained) drains_.erase(node);
  for (const OwnerUsage& usage : transaction.usages) usages_[usage.owner] = usage;
  for (const v1::JobSummary& job : transaction.ended) {
    ended_[job.number()] = job;
    ended_ids_.insert(job.id());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> MemoryStore::GetJob(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  auto found = jobs_.find(id);
  if (found == jobs_.end()) return absl::NotFoundError(absl::StrCat("no job ", Absl(id)));
  return found->second;
}

absl::StatusOr<std::vector<v1::Job>> MemoryStore::ListJobs() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Job> jobs;
  for (const std::string& id : order_) jobs.push_back(jobs_.find(id)->second);
  return jobs;
}

absl::StatusOr<std::vector<v1::Job>> MemoryStore::ListActiveJobs() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Job> jobs;
  for (const std::string& id : order_) {
    if (!ended_ids_.contains(id)) jobs.push_back(jobs_.find(id)->second);
  }
  return jobs;
}

absl::StatusOr<std::vector<v1::JobSummary>> MemoryStore::ListEnded(const JobFilter& filter,
                                                                   int64_t before,
                                                                   int64_t limit) const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::JobSummary> jobs;
  for (auto next = ended_.lower_bound(before); next != ended_.begin();) {
    --next;
    if (static_cast<int64_t>(jobs.size()) == limit) break;
    if (filter.Takes(next->second)) jobs.push_back(next->second);
  }
  return jobs;
}

absl::StatusOr<std::map<v1::JobState, int64_t>> MemoryStore::CountEnded(
    const JobFilter& filter) const {
  absl::MutexLock lock(&mutex_);
  std::map<v1::JobState, int64_t> counts;
  for (const auto& [number, job] : ended_) {
    if (filter.Takes(job)) ++counts[job.state()];
  }
  return counts;
}

absl::StatusOr<std::string> MemoryStore::GetProgram(std::string_view sha256) const {
  absl::MutexLock lock(&mutex_);
  auto found = programs_.find(sha256);
  if (found == programs_.end()) {
    return absl::NotFoundError(absl::StrCat("no program ", Absl(sha256)));
  }
  return found->second;
}

absl::StatusOr<std::vector<v1::JobEvent>> MemoryStore::Events(std::string_view job,
                                                              int64_t after_sequence,
                                                              int64_t limit) const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::JobEvent> events;
  auto found = events_.find(job);
  if (found == events_.end()) return events;
  for (const v1::JobEvent& event : found->second) {
    if (static_cast<int64_t>(events.size()) == limit) break;
    if (event.sequence() > after_sequence) events.push_back(event);
  }
  return events;
}

absl::StatusOr<int64_t> MemoryStore::LastSequence(std::string_view job) const {
  absl::MutexLock lock(&mutex_);
  auto found = events_.find(job);
  if (found == events_.end() || found->second.empty()) return 0;
  return found->second.back().sequence();
}

absl::StatusOr<std::string> MemoryStore::GetHistory(std::string_view job) const {
  absl::MutexLock lock(&mutex_);
  const auto found = histories_.find(job);
  return found == histories_.end() ? "" : found->second;
}

absl::StatusOr<std::vector<LearnedMemory>> MemoryStore::Learned() const {
  absl::MutexLock lock(&mutex_);
  std::vector<LearnedMemory> all;
  for (const auto& [key, bytes] : learned_) all.push_back({key.first, key.second, bytes});
  return all;
}

absl::StatusOr<std::vector<v1::Drain>> MemoryStore::Drains() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Drain> drains;
  for (const auto& [node, drain] : drains_) drains.push_back(drain);
  return drains;
}

absl::StatusOr<std::vector<OwnerUsage>> MemoryStore::Usages() const {
  absl::MutexLock lock(&mutex_);
  std::vector<OwnerUsage> usages;
  for (const auto& [owner, usage] : usages_) usages.push_back(usage);
  return usages;
}

absl::StatusOr<int64_t> MemoryStore::LastNumber() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(order_.size());
}

}  // namespace terrace
