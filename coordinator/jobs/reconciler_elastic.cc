// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
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
// for the workers that are free, and one that runs on fewer than it may have gets more: it stops
// only once there is a plan with more that is faster.
namespace terrace {
namespace {

// A job that is planned to start so soon anyway waits for all of its workers.
constexpr int64_t kSoonEnoughMs = 60'000;
constexpr int64_t kGrowLookNs = 1'000'000'000;

// It waits for devices, and might take those that another one would grow into, or gives up.
bool WantsDevices(const v1::Job& job) {
  switch (job.reason()) {
    case v1::REASON_NO_MATCHING_WORKER:
    case v1::REASON_DEPENDENCY:
      return false;
    default:
      return true;
  }
}

// It stops already, or would lose what it has done.
bool MayNotStop(const v1::Job& job) {
  return job.pause_requested() || job.cancel_requested() || job.time_limit_unix_ms() > 0 ||
         job.has_hang() || job.spec().checkpoint().save() == "never";
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

// Its state stays as it is: while it waits it keeps its place in the queue, while it runs it
// trains.
void Reconciler::PlanAside(const std::string& id, Entry& entry, const Budget& budget) {
  entry.planning = true;
  entry.budget = BudgetText(budget);
  ports_.Plan(
      entry.job.spec(), budget, entry.wanted,
      [this, id](absl::StatusOr<PlannedJob> planned) { FinishAside(id, std::move(planned)); });
}

void Reconciler::FinishAside(const std::string& id, absl::StatusOr<PlannedJob> planned) {
  Entry* entry = Find(id);
  if (entry == nullptr) return;  // cancelled meanwhile
  entry->planning = false;
  const int64_t now = clock_.MonotonicNanos();
  entry->grow_again_ns = now + queue_.grow_after_seconds * 1'000'000'000;
  if (!planned.ok()) {
    log::Info("job ", id, " keeps its number of workers: ", planned.status().message());
    if (absl::IsAborted(planned.status()) || absl::IsUnavailable(planned.status())) {
      entry->budget.clear();
      entry->plan_again_ns = now + timing_.plan_again_ns;
    }
  } else if (entry->job.state() == v1::RUNNING) {
    StopToGrow(id, *entry, *std::move(planned));
  } else if (entry->job.state() == v1::QUEUED || entry->job.state() == v1::RECOVERING) {
    TakePlan(id, *std::move(planned));
  } else {
    entry->budget.clear();  // it was placed meanwhile
  }
  Pass();
}

void Reconciler::TakePlan(const std::string& id, PlannedJob planned) {
  absl::Status status = Commit({.programs = std::move(planned.programs)});
  if (status.ok()) status = Update(id, Planned{std::move(planned.plan)});
  if (!status.ok()) log::Warn("job ", id, " keeps its number of workers: ", status.message());
}

bool Reconciler::PlanForFewer(const v1::Job& job, const WaitStory& story,
                              const std::vector<QueueNode>& nodes, int64_t unix_ms) {
  if (!IsElastic(job.spec())) return false;
  const std::string id = job.id();
  Entry& entry = *Find(id);
  const int64_t now = clock_.MonotonicNanos();
  if (std::exchange(entry.waited_epoch, job.epoch()) != job.epoch()) entry.waited_ns = now;
  const bool soon = story.starts_ms != kUnknownMs && story.starts_ms - unix_ms <= kSoonEnoughMs;
  // A job that takes longer than planned is always about to end.
  if (soon && now - entry.waited_ns < kSoonEnoughMs * 1'000'000) return false;
  if (entry.planning) return true;
  if (now < entry.plan_again_ns) return false;
  const absl::StatusOr<Budget> budget = BudgetNowFree(job, nodes);
  if (!budget.ok() || budget->nodes >= job.plan().layout().nodes()) return false;
  if (BudgetText(*budget) == entry.budget) return false;
  PlanAside(id, entry, *budget);
  return true;
}

std::optional<Budget> Reconciler::MayGrowTo(const Entry& entry, const std::vector<QueueNode>& nodes,
                                            int64_t unix_ms) const {
  const v1::Job& job = entry.job;
  const uint32_t has = job.plan().layout().nodes();
  if (MayNotStop(job) || has >= job.spec().resources().nodes_max()) return std::nullopt;
  // A start takes a while: only a job that trains, and goes on for longer, gains.
  if (clock_.MonotonicNanos() < entry.grow_again_ns) return std::nullopt;
  if (unix_ms - job.placed_unix_ms() < queue_.grow_after_seconds * 1000) return std::nullopt;
  if (job.progress().step() == 0 || RemainingSeconds(job) < double(queue_.grow_after_seconds))
    return std::nullopt;
  const absl::StatusOr<Budget> budget = BudgetNowFree(job, nodes);
  if (!budget.ok() || budget->nodes <= has || BudgetText(*budget) == entry.budget)
    return std::nullopt;
  return *budget;
}

// With a plan that is better than its own; the coordinator keeps it until the job has stopped, and
// where it is lost the job goes on as it was.
void Reconciler::StopToGrow(const std::string& id, Entry& entry, PlannedJob larger) {
  const v1::Plan& has = entry.job.plan();
  const bool more = larger.plan.layout().nodes() > has.layout().nodes();
  const bool faster = larger.plan.time().step_seconds() < has.time().step_seconds();
  if (!more || !faster || MayNotStop(entry.job)) return;
  if (const absl::Status status = Update(id, GrowAsked{}); !status.ok()) {
    log::Warn("job ", id, " cannot have more workers: ", status.message());
    return;
  }
  entry.larger = std::move(larger);
}

void Reconciler::TakeLarger(const std::string& id, Entry& entry) {
  if (!entry.larger.has_value() || entry.job.state() == v1::RUNNING) return;
  PlannedJob larger = *std::exchange(entry.larger, std::nullopt);
  if (entry.job.state() == v1::QUEUED) TakePlan(id, std::move(larger));
}

void Reconciler::GrowJobs() {
  const int64_t now = clock_.MonotonicNanos();
  if (index_.elastic().empty() || now < grow_look_ns_) return;
  grow_look_ns_ = now + kGrowLookNs;
  for (const auto& [number, id] : index_.waiting()) {
    if (WantsDevices(jobs_.find(id)->second.job)) return;
  }
  for (const std::string& id : index_.elastic()) {  // one at a time
    const Entry& entry = jobs_.find(id)->second;
    if (entry.planning || entry.job.preempted_by() == id) return;
  }
  const int64_t unix_ms = clock_.UnixMillis();
  const std::vector<QueueNode> nodes = FreeNodes(unix_ms);
  const bool any_free = std::any_of(nodes.begin(), nodes.end(), [](const QueueNode& node) {
    return std::find(node.free_at_ms.begin(), node.free_at_ms.end(), kFreeNow) !=
           node.free_at_ms.end();
  });
  if (!any_free) return;
  for (const std::string& id : index_.elastic()) {
    Entry& entry = *Find(id);
    const std::optional<Budget> budget = MayGrowTo(entry, nodes, unix_ms);
    if (!budget.has_value()) continue;
    return PlanAside(std::string(id), entry, *budget);
  }
}

}  // namespace terrace
