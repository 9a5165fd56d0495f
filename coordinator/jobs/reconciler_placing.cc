// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "coordinator/jobs/reconciler.h"

// Planned jobs that wait: which of them are placed now, and what the others wait for.
namespace terrace {

std::vector<NodeView> Reconciler::FreeNodes() const {
  std::vector<NodeView> nodes = KnownNodes();
  std::unordered_map<std::string_view, NodeView*> by_name;
  for (NodeView& node : nodes) by_name[node.name] = &node;
  for (const std::string& id : index_.with_gang()) {
    const v1::Job& job = jobs_.find(id)->second.job;
    if (!HoldsDevices(job.state())) continue;
    for (const v1::Placement::Rank& placed : job.placement().ranks()) {
      const auto node = by_name.find(placed.worker());
      if (node != by_name.end()) node->second->used.insert(placed.device());
    }
  }
  return nodes;
}

// By the number of their submission.
std::vector<const v1::Job*> Reconciler::WaitingJobs() const {
  std::vector<const v1::Job*> waiting;
  for (const auto& [number, id] : index_.waiting()) {
    const v1::Job& job = jobs_.find(id)->second.job;
    if (job.epoch() > 0 && cluster_.HasRanksOf(id)) continue;  // its old ranks end first
    waiting.push_back(&job);
  }
  return waiting;
}

void Reconciler::PlaceJobs() {
  const int64_t begun_ns = clock_.MonotonicNanos();
  const bool is_due = place_due_ || cluster_.places_version() != placed_version_;
  if (!is_due || !place_pace_.IsDue(begun_ns)) return;
  place_due_ = false;
  placed_version_ = cluster_.places_version();
  const std::vector<const v1::Job*> waiting = WaitingJobs();
  if (waiting.empty()) return;
  bool placed = false;
  for (Decision& decision : Schedule(waiting, FreeNodes())) {
    if (decision.placement.ranks_size() == 0) {
      Wait(*Find(decision.job), decision.reason, std::move(decision.message));
    } else if (absl::Status status = Update(decision.job, Placed{decision.placement});
               status.ok()) {
      placed = true;
    } else {
      log::Warn("job ", decision.job, " cannot be placed: ", status.message());
    }
  }
  place_pace_.Took(begun_ns, clock_.MonotonicNanos());
  if (placed) ObserveJobs();  // sends the start commands
}

void Reconciler::Wait(Entry& entry, v1::Reason reason, std::string message) {
  const v1::Job& job = entry.job;
  const bool waits = job.state() == v1::QUEUED || job.state() == v1::RECOVERING;
  if (!waits || job.reason() != reason) {
    const std::string id = job.id();
    if (absl::Status status = Update(id, MustWait{reason, message}); !status.ok()) {
      log::Warn("job ", id, " cannot be told what it waits for: ", status.message());
      place_due_ = plan_due_ = true;
      return;
    }
  }
  entry.waits_for = std::move(message);
}

}  // namespace terrace
