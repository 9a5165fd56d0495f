// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "coordinator/jobs/reconciler.h"

// Planned jobs that wait: which of them are placed now, what the others wait for, and when they may
// start.
namespace terrace {
namespace {

// Of a queue in which nothing happens: priorities age, and estimates move.
constexpr int64_t kPlaceAgainNs = 10'000'000'000;

// Nobody is ahead of it on the workers that could hold it.
bool WaitsForDevicesAlone(const WaitStory& story) {
  return std::all_of(story.reasons.begin(), story.reasons.end(),
                     [](const WaitReason& reason) { return reason.what == WaitFor::kDevices; });
}

std::shared_ptr<const WaitStory> WithReason(const WaitStory& story, const std::string& text) {
  auto told = std::make_shared<WaitStory>(story);
  told->reasons.push_back({WaitFor::kDevices, text});
  return told;
}

}  // namespace

std::vector<QueueNode> Reconciler::FreeNodes(int64_t unix_ms) const {
  std::vector<NodeView> nodes = KnownNodes();
  std::unordered_map<std::string_view, NodeView*> by_name;
  for (NodeView& node : nodes) by_name[node.name] = &node;
  for (const std::string& id : index_.with_gang()) {
    const v1::Job& job = jobs_.find(id)->second.job;
    if (!HoldsDevices(job.state())) continue;
    const int64_t end_ms = PlannedEndMs(job, unix_ms);
    for (const v1::Placement::Rank& placed : job.placement().ranks()) {
      const auto node = by_name.find(placed.worker());
      if (node != by_name.end()) node->second->used[placed.device()] = end_ms;
    }
  }
  std::vector<QueueNode> seen;
  seen.reserve(nodes.size());
  for (const NodeView& node : nodes) seen.push_back(QueueNodeOf(node));
  return seen;
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
  const bool is_due = place_due_ || cluster_.places_version() != placed_version_ ||
                      begun_ns - placed_ns_ >= kPlaceAgainNs;
  if (!is_due || !place_pace_.IsDue(begun_ns)) return;
  place_due_ = false;
  placed_version_ = cluster_.places_version();
  placed_ns_ = begun_ns;
  const std::vector<const v1::Job*> waiting = WaitingJobs();
  if (waiting.empty()) return;
  const int64_t unix_ms = clock_.UnixMillis();
  QueueView queue = QueueNow(waiting, unix_ms);
  const std::vector<QueueNode> nodes = FreeNodes(unix_ms);
  bool placed = false;
  const std::map<std::string, std::string, std::less<>> stopping = StoppingFor();
  // The first of their pools, for which nothing is kept but free devices.
  std::vector<std::pair<size_t, std::shared_ptr<const WaitStory>>> first;
  for (QueueDecision& decision :
       ScheduleQueue(queue.jobs, nodes, unix_ms, queue.owners, queue.arrays)) {
    const std::string id = waiting[decision.job]->id();
    if (decision.ranks.empty()) {
      if (WaitsForDevicesAlone(*decision.waits)) first.emplace_back(decision.job, decision.waits);
      const auto told = stopping.find(id);
      if (told != stopping.end()) decision.waits = WithReason(*decision.waits, told->second);
      Wait(*Find(id), std::move(decision.waits));
    } else if (absl::Status status = Update(id, Placed{PlacementOf(decision, nodes)});
               status.ok()) {
      placed = true;
    } else {
      log::Warn("job ", id, " cannot be placed: ", status.message());
    }
  }
  if (placed) {
    place_due_ = true;  // whom devices are taken from is decided when nothing else is placed
  } else {
    for (const auto& [job, story] : first) {
      if (!PlanForFewer(*waiting[job], *story, nodes, unix_ms))
        PreemptFor(*waiting[job], queue.jobs[job].need, *story, nodes, unix_ms);
    }
  }
  place_pace_.Took(begun_ns, clock_.MonotonicNanos());
  if (placed) ObserveJobs();  // sends the start commands
}

// Soon after a start workers are yet to come back: that nobody could hold a job is not said of one
// that waits for something else. A queue of thousands would be written, and again a second later.
void Reconciler::Wait(Entry& entry, std::shared_ptr<const WaitStory> story) {
  const v1::Job& job = entry.job;
  const bool waits = job.state() == v1::QUEUED || job.state() == v1::RECOVERING;
  const v1::Reason reason = ReasonOf(story->reasons.front().what);
  const bool for_workers = reason == v1::REASON_NO_MATCHING_WORKER && job.reason() != reason;
  if (waits && for_workers && job.reason() != v1::REASON_NONE &&
      cluster_.IsYoung(clock_.MonotonicNanos())) {
    return;
  }
  if (!waits || job.reason() != reason) {
    const std::string id = job.id();
    if (absl::Status status = Update(id, MustWait{reason, MessageOf(*story)}); !status.ok()) {
      log::Warn("job ", id, " cannot be told what it waits for: ", status.message());
      place_due_ = plan_due_ = true;
      return;
    }
  }
  entry.waits = std::move(story);
}

}  // namespace terrace
