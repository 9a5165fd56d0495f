// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/jobs/scheduler.h"
#include "coordinator/life/time_limit.h"

// Jobs whose number of workers may change (`resources.nodes: MIN:MAX`). One that has lost a worker
// is planned again for those that are left (reconciler_planning.cc); here one that waits is planned
// for the workers that are free, and one that runs on fewer than it may have gets more.
namespace terrace {
namespace {

// A job that is planned to start so soon anyway waits for all of its workers.
constexpr int64_t kSoonEnoughMs = 60'000;
constexpr int64_t kGrowLookNs = 1'000'000'000;

// It waits for devices, and might take those that another one would grow into.
bool WantsDevices(const v1::Job& job) {
  switch (job.reason()) {
    case v1::REASON_NO_MATCHING_WORKER:
    case v1::REASON_DEPENDENCY:
    case v1::REASON_QUOTA:
    case v1::REASON_ARRAY_LIMIT:
      return false;
    default:
      return true;
  }
}

}  // namespace

absl::StatusOr<Budget> Reconciler::BudgetNowFree(const v1::Job& job,
                                                 const std::vector<QueueNode>& nodes) const {
  std::map<std::string_view, int64_t> own;
  if (HoldsDevices(job.state())) {
    for (const v1::Placement::Rank& placed : job.placement().ranks()) ++own[placed.worker()];
  }
  std::map<std::string_view, int64_t> free = std::move(own);
  for (const QueueNode& node : nodes)
    free[node.name] += std::count(node.free_at_ms.begin(), node.free_at_ms.end(), kFreeNow);
  const int64_t devices = std::max<uint32_t>(1, job.spec().resources().devices_per_node());
  std::vector<NodeView> with_room = KnownNodes();
  std::erase_if(with_room, [&](const NodeView& node) { return free[node.name] < devices; });
  const std::string shape = learned_.empty() ? "" : ShapeOf(job.spec());
  absl::StatusOr<Budget> budget = BudgetAmong(job.spec(), shape, std::move(with_room));
  if (budget.ok())
    budget->external_bytes = std::max(budget->external_bytes, job.learned_external_bytes());
  return budget;
}

bool Reconciler::PlanForFewer(const v1::Job& job, const WaitStory& story,
                              const std::vector<QueueNode>& nodes, int64_t unix_ms) {
  if (!IsElastic(job.spec())) return false;
  if (story.starts_ms != kUnknownMs && story.starts_ms - unix_ms <= kSoonEnoughMs) return false;
  const absl::StatusOr<Budget> budget = BudgetNowFree(job, nodes);
  if (!budget.ok() || budget->nodes >= job.plan().layout().nodes()) return false;
  const std::string id = job.id();
  Entry& entry = *Find(id);
  if (entry.planning || BudgetText(*budget) == entry.budget) return false;
  StartPlanning(id, entry, *budget);
  return true;
}

bool Reconciler::MayGrow(const Entry& entry, const std::vector<QueueNode>& nodes,
                         int64_t unix_ms) const {
  const v1::Job& job = entry.job;
  const bool stops = job.pause_requested() || job.cancel_requested() ||
                     job.time_limit_unix_ms() > 0 || job.has_hang() ||
                     job.spec().checkpoint().save() == "never";
  const uint32_t has = job.plan().layout().nodes();
  if (stops || has >= job.spec().resources().nodes_max()) return false;
  // A start takes a while: only a job that trains, and goes on for longer, gains.
  if (unix_ms - job.placed_unix_ms() < queue_.grow_after_seconds * 1000) return false;
  if (job.progress().step() == 0 || RemainingSeconds(job) < double(queue_.grow_after_seconds))
    return false;
  const absl::StatusOr<Budget> budget = BudgetNowFree(job, nodes);
  return budget.ok() && budget->nodes > has && BudgetText(*budget) != entry.budget;
}

void Reconciler::GrowJobs() {
  const int64_t now = clock_.MonotonicNanos();
  if (index_.elastic().empty() || now < grow_look_ns_) return;
  grow_look_ns_ = now + kGrowLookNs;
  for (const auto& [number, id] : index_.waiting()) {
    if (WantsDevices(jobs_.find(id)->second.job)) return;
  }
  const int64_t unix_ms = clock_.UnixMillis();
  const std::vector<QueueNode> nodes = FreeNodes(unix_ms);
  const bool any_free = std::any_of(nodes.begin(), nodes.end(), [](const QueueNode& node) {
    return std::find(node.free_at_ms.begin(), node.free_at_ms.end(), kFreeNow) !=
           node.free_at_ms.end();
  });
  if (!any_free) return;
  for (const std::string& id : index_.elastic()) {
    if (!MayGrow(*Find(id), nodes, unix_ms)) continue;
    const std::string grown = id;  // the set changes
    if (const absl::Status status = Update(grown, GrowAsked{}); !status.ok()) {
      log::Warn("job ", grown, " cannot have more workers: ", status.message());
      continue;
    }
    return;  // the next one when this one has them
  }
}

}  // namespace terrace
