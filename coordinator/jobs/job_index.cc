// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/job_index.h"

#include <algorithm>
#include <utility>

#include "coordinator/jobs/scheduler.h"
#include "coordinator/life/job_state.h"

namespace terrace {
namespace {

void SetMember(std::set<std::string>* set, const std::string& id, bool is_member) {
  if (is_member) {
    set->insert(id);
  } else {
    set->erase(id);
  }
}

bool IsQueued(const v1::Job& job) {
  return job.state() == v1::QUEUED || job.state() == v1::RECOVERING;
}

bool WaitsToBePlaced(const v1::Job& job) {
  return job.has_plan() && IsQueued(job) && !NeedsSmallerLayout(job);
}

// No worker could hold it as it was submitted, or those that it was planned for have gone.
bool WaitsToBePlanned(const v1::Job& job) {
  const bool homeless = IsQueued(job) && job.reason() == v1::REASON_NO_MATCHING_WORKER;
  return homeless || job.state() == v1::PENDING || job.state() == v1::PLANNING;
}

}  // namespace

std::string_view JobIndex::DirectoryName(std::string_view path) {
  if (path.ends_with('/')) path.remove_suffix(1);  // paths are normal otherwise
  return path;
}

void JobIndex::Put(const v1::Job& job) {
  const auto [found, is_new] = known_.try_emplace(job.id());
  Known& known = found->second;
  if (is_new) {
    known.number = NumberOf(job.id());
    by_number_[known.number] = job.id();
    known.directory = DirectoryName(job.spec().checkpoint().directory());
    if (!known.directory.empty()) by_directory_.emplace(known.directory, job.id());
    for (const v1::Dependency& dependency : job.dependencies()) {
      known.after.push_back(dependency.job());
      dependents_.emplace(dependency.job(), job.id());
    }
  }
  const bool has_gang = HoldsDevices(job.state()) || job.state() == v1::RECOVERING;
  SetMember(&with_gang_, job.id(), has_gang);
  SetMember(&unplanned_, job.id(), WaitsToBePlanned(job));
  SetMember(&shrinking_, job.id(), NeedsSmallerLayout(job));
  SetMember(&elastic_, job.id(), job.state() == v1::RUNNING && IsElastic(job.spec()));
  if (WaitsToBePlaced(job)) {
    waiting_[known.number] = job.id();
  } else {
    waiting_.erase(known.number);
  }
  Place(job, has_gang, &known);
}

void JobIndex::Place(const v1::Job& job, bool has_gang, Known* known) {
  if (has_gang && known->epoch == job.epoch()) return;
  TakeFromWorkers(job.id(), known);
  known->epoch = has_gang ? job.epoch() : -1;
  if (!has_gang) return;
  for (const v1::Placement::Rank& rank : job.placement().ranks()) {
    if (by_worker_[rank.worker()].insert(job.id()).second) known->workers.push_back(rank.worker());
  }
}

void JobIndex::TakeFromWorkers(const std::string& id, Known* known) {
  for (const std::string& worker : known->workers) {
    const auto found = by_worker_.find(worker);
    found->second.erase(id);
    if (found->second.empty()) by_worker_.erase(found);
  }
  known->workers.clear();
}

void JobIndex::Erase(std::string_view id) {
  const auto found = known_.find(id);
  if (found == known_.end()) return;
  const auto& [name, known] = *found;
  with_gang_.erase(name);
  by_number_.erase(known.number);
  waiting_.erase(known.number);
  unplanned_.erase(name);
  elastic_.erase(name);
  shrinking_.erase(name);
  TakeFromWorkers(name, &found->second);
  const auto [begin, end] = by_directory_.equal_range(known.directory);
  const auto writer = std::find_if(begin, end, [&](const auto& one) { return one.second == name; });
  if (writer != end) by_directory_.erase(writer);
  for (const std::string& before : known.after) {
    const auto [first, last] = dependents_.equal_range(before);
    const auto own = std::find_if(first, last, [&](const auto& one) { return one.second == name; });
    if (own != last) dependents_.erase(own);
  }
  known_.erase(found);
}

const std::set<std::string>& JobIndex::On(std::string_view worker) const {
  const auto found = by_worker_.find(worker);
  return found == by_worker_.end() ? none_ : found->second;
}

std::vector<std::string> JobIndex::DependentsOf(std::string_view id) const {
  std::vector<std::string> dependents;
  const auto [begin, end] = dependents_.equal_range(id);
  for (auto one = begin; one != end; ++one) dependents.push_back(one->second);
  return dependents;
}

std::string_view JobIndex::WriterTo(std::string_view directory) const {
  const auto found = by_directory_.find(directory);
  return found == by_directory_.end() ? std::string_view() : found->second;
}

}  // namespace terrace
