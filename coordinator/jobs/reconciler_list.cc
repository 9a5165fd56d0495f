// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/jobs/job_summary.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/life/time_limit.h"

// Clients read one job, a page of a list, or all. Jobs that have not ended come from memory, the
// others from the store.
namespace terrace {
namespace {

constexpr size_t kEndedStatesMax = 10'000;

// Adds the times that are worked out when a job is shown.
void AddTimes(int64_t unix_ms, v1::Job* job) {
  job->set_held_seconds(HeldSeconds(*job, unix_ms));
  job->set_remaining_seconds(RemainingSeconds(*job));
}

bool Selects(const JobFilter& filter) {
  return !filter.owner.empty() || !filter.array.empty() || !filter.text.empty();
}

// The filter's part that is about ended jobs; nothing where it asks for others only.
std::optional<JobFilter> EndedOf(JobFilter filter) {
  std::sort(filter.states.begin(), filter.states.end());
  const auto same = std::unique(filter.states.begin(), filter.states.end());
  filter.states.erase(same, filter.states.end());
  const bool any = filter.states.empty();
  std::erase_if(filter.states, [](v1::JobState state) { return !HasEnded(state); });
  if (!any && filter.states.empty()) return std::nullopt;
  return filter;
}

}  // namespace

absl::StatusOr<v1::Job> Reconciler::Get(std::string_view id) const {
  auto found = jobs_.find(id);
  if (found != jobs_.end()) return Shown(found->second);
  absl::StatusOr<v1::Job> stored = store_.GetJob(id);
  if (stored.ok()) AddTimes(clock_.UnixMillis(), &*stored);
  if (!absl::IsNotFound(stored.status())) return stored;
  return absl::NotFoundError(
      absl::StrCat("no job ", Absl(id), ": `terrace ls --all` lists those there are"));
}

v1::Job Reconciler::Shown(const Entry& entry) const {
  v1::Job job = entry.job;
  if (entry.waits != nullptr) {
    job.set_message(MessageOf(*entry.waits));
    for (const WaitReason& reason : entry.waits->reasons) {
      v1::Wait* wait = job.add_waits();
      wait->set_reason(ReasonOf(reason.what));
      wait->set_message(reason.text);
    }
    if (entry.waits->starts_ms != kUnknownMs)
      job.set_estimated_start_unix_ms(entry.waits->starts_ms);
    job.set_estimate(entry.waits->estimate);
    job.set_priority(PriorityOf(job, clock_.UnixMillis()));
  }
  AddTimes(clock_.UnixMillis(), &job);
  return job;
}

v1::JobSummary Reconciler::ShownInShort(const Entry& entry) const {
  v1::JobSummary job = SummaryOf(entry.job);
  if (entry.waits == nullptr) return job;
  job.set_message(MessageOf(*entry.waits));
  if (entry.waits->starts_ms != kUnknownMs) job.set_estimated_start_unix_ms(entry.waits->starts_ms);
  job.set_estimate(entry.waits->estimate);
  return job;
}

// A job that has ended stays as it is, so that its state may be remembered.
std::optional<v1::JobState> Reconciler::StateOf(std::string_view id) const {
  if (const auto found = jobs_.find(id); found != jobs_.end()) return found->second.job.state();
  if (const auto found = ended_states_.find(id); found != ended_states_.end()) return found->second;
  const absl::StatusOr<v1::Job> stored = store_.GetJob(id);
  if (absl::IsNotFound(stored.status())) return std::nullopt;
  if (!stored.ok()) return v1::JOB_STATE_UNSPECIFIED;  // no job ends for that
  if (ended_states_.size() >= kEndedStatesMax) ended_states_.clear();
  return ended_states_[std::string(id)] = stored->state();
}

absl::StatusOr<std::vector<v1::Job>> Reconciler::List(bool all) const {
  std::vector<v1::Job> jobs;
  if (all) {
    ASSIGN_OR_RETURN(jobs, store_.ListJobs());
    std::erase_if(jobs, [](const v1::Job& job) { return !HasEnded(job.state()); });
    for (v1::Job& job : jobs) AddTimes(clock_.UnixMillis(), &job);
  }
  for (const auto& [id, entry] : jobs_) jobs.push_back(Shown(entry));
  std::sort(jobs.begin(), jobs.end(),
            [](const v1::Job& a, const v1::Job& b) { return NumberOf(a.id()) < NumberOf(b.id()); });
  return jobs;
}

// ---- pages ------------------------------------------------------------------------------------

// In memory the filter looks at what is there; a row is made only of a job whose text is asked for,
// or that is shown.
bool Reconciler::IsTaken(const JobFilter& filter, const Entry& entry) const {
  const v1::Job& job = entry.job;
  if (!filter.TakesState(job.state())) return false;
  if (!filter.owner.empty() && filter.owner != job.owner()) return false;
  if (!filter.array.empty() && filter.array != job.array().array()) return false;
  return filter.text.empty() || filter.Takes(ShownInShort(entry));
}

absl::StatusOr<std::map<v1::JobState, int64_t>> Reconciler::CountJobs(
    const JobFilter& filter) const {
  std::map<v1::JobState, int64_t> counts;
  if (!Selects(filter)) {  // all are counted anyway
    for (const auto& [state, count] : stats_.jobs) {
      if (count > 0 && filter.TakesState(state)) counts[state] = count;
    }
    return counts;
  }
  if (const std::optional<JobFilter> ended = EndedOf(filter); ended.has_value()) {
    ASSIGN_OR_RETURN(counts, store_.CountEnded(*ended));
  }
  for (const auto& [id, entry] : jobs_) {
    if (IsTaken(filter, entry)) ++counts[entry.job.state()];
  }
  return counts;
}

absl::StatusOr<v1::ListPageResponse> Reconciler::ListPage(const JobFilter& filter,
                                                          const PageOf& page) const {
  const int64_t wanted = page.skipped + page.limit + 1;  // one more tells whether there is a next
  std::vector<v1::JobSummary> ended;
  if (const std::optional<JobFilter> of = EndedOf(filter); of.has_value()) {
    ASSIGN_OR_RETURN(ended, store_.ListEnded(*of, page.before, wanted));
  }
  std::vector<PageRow> rows;
  const auto& active = index_.by_number();
  auto next = active.lower_bound(page.before);
  auto next_ended = ended.begin();
  while (static_cast<int64_t>(rows.size()) < wanted) {
    const bool any = next != active.begin();
    if (!any && next_ended == ended.end()) break;
    if (!any || (next_ended != ended.end() && next_ended->number() > std::prev(next)->first)) {
      rows.push_back({.number = next_ended->number(), .ended = &*next_ended});
      ++next_ended;
      continue;
    }
    --next;
    const Entry& entry = jobs_.find(next->second)->second;
    if (IsTaken(filter, entry)) rows.push_back({.number = next->first, .active = &entry});
  }
  return PageWith(rows, filter, page);
}

absl::StatusOr<v1::ListPageResponse> Reconciler::PageWith(const std::vector<PageRow>& rows,
                                                          const JobFilter& filter,
                                                          const PageOf& page) const {
  v1::ListPageResponse response;
  size_t bytes = 0;
  const auto first = static_cast<size_t>(page.skipped);
  const auto most = first + static_cast<size_t>(page.limit);
  for (size_t i = first; i < rows.size(); ++i) {
    if (i == most || bytes >= kPageBytesMax) {
      response.set_next(rows[i - 1].number);
      break;
    }
    const PageRow& row = rows[i];
    if (!page.whole) {
      *response.add_summaries() = row.active != nullptr ? ShownInShort(*row.active) : *row.ended;
      continue;
    }
    v1::Job& job = *response.add_jobs();
    if (row.active != nullptr) {
      job = Shown(*row.active);
    } else {
      ASSIGN_OR_RETURN(job, Get(row.ended->id()));
    }
    bytes += job.ByteSizeLong();
  }
  ASSIGN_OR_RETURN(const auto counts, CountJobs(filter));
  for (const auto& [state, count] : counts) {
    v1::ListPageResponse::Count* of = response.add_counts();
    of->set_state(state);
    of->set_jobs(count);
  }
  return response;
}

}  // namespace terrace
