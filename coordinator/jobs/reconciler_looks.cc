// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/jobs/reconciler.h"

// Which jobs a pass looks at: those that something has happened to, and those whose time has come.
namespace terrace {
namespace {

// Between two looks at a job where nothing happens but time, and where that may change something.
constexpr int64_t kLookNs = 1'000'000'000;
constexpr int64_t kSoonNs = 200'000'000;
// Larger gangs are not looked at for every heartbeat of one of their workers.
constexpr int kRanksLookedAtEachTime = 4;

}  // namespace

void Reconciler::NoteNew(Entry& entry) {
  places_.Add(JobIndex::DirectoryName(entry.job.spec().checkpoint().directory()));
  NoteChange(entry.job, entry);
}

void Reconciler::NoteChange(const v1::Job& before, Entry& entry) {
  const v1::Job& job = entry.job;
  place_due_ = true;
  const std::string_view directory = JobIndex::DirectoryName(job.spec().checkpoint().directory());
  // Ranks make the directory where it is not there yet.
  if (before.state() != job.state() && HoldsDevices(job.state())) places_.Doubt(directory);
  // Ranks of a gang that is no more are strays.
  if (before.epoch() != job.epoch() || !HoldsDevices(job.state())) {
    for (const v1::Placement::Rank& rank : before.placement().ranks())
      strays_on_.insert(rank.worker());
  }
  if (HasEnded(job.state())) {
    for (std::string& id : index_.DependentsOf(job.id())) dependents_due_.insert(std::move(id));
    index_.Erase(job.id());
    places_.Remove(directory);
    unwritten_.erase(job.id());
    return LookAt(entry, kNeverNs);
  }
  index_.Put(job);
  plan_due_ |= index_.unplanned().contains(job.id());
  LookAt(entry, index_.with_gang().contains(job.id()) ? INT64_MIN : kNeverNs);
}

void Reconciler::LookAt(Entry& entry, int64_t when_ns) {
  if (entry.look_ns == when_ns) return;
  if (entry.look_ns != kNeverNs) looks_.erase({entry.look_ns, entry.job.id()});
  entry.look_ns = when_ns;
  if (when_ns != kNeverNs) looks_.emplace(when_ns, entry.job.id());
}

void Reconciler::LookSoon(Entry& entry) {
  LookAt(entry, std::min(entry.look_ns, clock_.MonotonicNanos() + kSoonNs));
}

void Reconciler::Touch(std::string_view id, bool is_urgent) {
  Entry* entry = Find(id);
  if (entry == nullptr || entry->look_ns == kNeverNs) return;  // it has no gang
  const bool at_once = is_urgent || entry->job.placement().ranks_size() <= kRanksLookedAtEachTime;
  LookAt(*entry, std::min(entry->look_ns, at_once ? INT64_MIN : entry->looked_ns + kSoonNs));
}

void Reconciler::TouchJobsOn(std::string_view worker, bool is_urgent) {
  for (const std::string& id : index_.On(worker)) Touch(id, is_urgent);
}

int64_t Reconciler::NextLookNs(const Entry& entry, const std::vector<RankView>& ranks) const {
  const v1::Job& job = entry.job;
  const bool all_reported = std::all_of(ranks.begin(), ranks.end(), [](const RankView& view) {
    return view.presence == Presence::kReported;
  });
  const bool changes_soon = job.state() == v1::STARTING || !entry.broken.empty() ||
                            job.has_hang() || job.cancel_requested() || job.pause_requested() ||
                            job.time_limit_unix_ms() > 0 || !drains_.empty() || !all_reported;
  return changes_soon ? kSoonNs : kLookNs;
}

void Reconciler::ObserveJobs() {
  const int64_t now = clock_.MonotonicNanos();
  std::vector<std::string> ids;  // Update may erase
  for (auto next = looks_.begin(); next != looks_.end() && next->first <= now;) {
    ids.push_back(next->second);
    Find(next->second)->look_ns = kNeverNs;
    next = looks_.erase(next);
  }
  for (const std::string& id : ids) {
    Entry& entry = *Find(id);
    entry.looked_ns = now;
    LookAt(entry, now + kLookNs);  // in any case; a change makes it sooner
    ObserveJob(id, entry);
  }
}

}  // namespace terrace
