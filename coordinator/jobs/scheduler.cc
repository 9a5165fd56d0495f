// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/scheduler.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "coordinator/life/time_limit.h"

namespace terrace {
namespace {

// `offers` are `nodes` as the queue sees them.
std::vector<const NodeView*> Matching(const Need& need, absl::Span<const QueueNode> offers,
                                      absl::Span<const NodeView> nodes) {
  std::vector<const NodeView*> matching;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (Matches(need, offers[i])) matching.push_back(&nodes[i]);
  }
  return matching;
}

Need NeedOfSpec(const v1::JobSpec& spec) {
  const v1::ResourceSpec& resources = spec.resources();
  return {.nodes = std::max<uint32_t>(1, resources.nodes_min()),
          .devices = std::max<uint32_t>(1, resources.devices_per_node()),
          .device_bytes = resources.device_memory(),
          .cuda = resources.device() == "cuda"};
}

Need NeedOfPlan(const v1::Job& job) {
  const v1::Layout& layout = job.plan().layout();
  Need need = NeedOfSpec(job.spec());
  need.nodes = std::max<uint32_t>(1, layout.nodes());
  need.devices = (std::max<uint32_t>(1, layout.ranks()) + need.nodes - 1) / need.nodes;
  // Threads that the user pinned may exceed what a worker offers: that is the user's choice.
  if (job.spec().resources().threads_per_device() == 0) need.threads = layout.threads_per_rank();
  need.cuda = layout.device() == "cuda";
  for (const v1::StageMemory& stage : job.plan().memory()) {
    if (stage.tier() == v1::HOST || stage.tier() == v1::NVME) continue;
    need.device_bytes = std::max(need.device_bytes, stage.arena_bytes() + stage.external_bytes());
  }
  return need;
}

}  // namespace

absl::StatusOr<Budget> BudgetFor(const v1::JobSpec& spec, absl::Span<const NodeView> nodes) {
  Need need = NeedOfSpec(spec);
  need.nodes = NodesFor(spec);
  // GPUs wherever there are enough, unless the spec says otherwise.
  const std::string& device = spec.resources().device();
  need.cuda = device != "cpu";
  need.either = device != "cpu" && device != "cuda";
  std::vector<QueueNode> offers;
  for (const NodeView& node : nodes) offers.push_back(QueueNodeOf(node));
  std::vector<const NodeView*> matching = Matching(need, offers, nodes);
  if (matching.size() < need.nodes && need.either) {
    need.cuda = false;
    std::vector<const NodeView*> others = Matching(need, offers, nodes);
    // Where neither are enough, the message is of those of which there are more.
    need.cuda = matching.size() > others.size();
    if (!need.cuda) matching = std::move(others);
  }
  if (matching.size() < need.nodes) {
    return absl::NotFoundError(NoMatchText(need, matching.size(), offers));
  }
  std::sort(matching.begin(), matching.end(), [](const NodeView* a, const NodeView* b) {
    // The best first: a job that may take fewer workers than there are takes those.
    return std::make_tuple(a->threads_per_device, a->device_memory_bytes, std::cref(b->name)) >
           std::make_tuple(b->threads_per_device, b->device_memory_bytes, std::cref(a->name));
  });
  const bool pinned = spec.layout().dp() > 0;
  const uint32_t wanted = pinned ? need.nodes : std::max(need.nodes, spec.resources().nodes_max());
  matching.resize(std::min<size_t>(matching.size(), wanted));

  Budget budget{.nodes = static_cast<uint32_t>(matching.size())};
  if (need.cuda) budget.device = "cuda";
  budget.ranks = budget.nodes * need.devices;
  budget.profile = *matching.back()->profile;  // a step is as slow as its slowest rank
  budget.threads_per_rank = matching.back()->threads_per_device;
  for (const NodeView* node : matching) {
    budget.external_bytes = std::max(budget.external_bytes, node->external_bytes);
    if (node->device_memory_bytes == 0) continue;
    budget.device_memory_bytes =
        budget.device_memory_bytes == 0
            ? node->device_memory_bytes
            : std::min(budget.device_memory_bytes, node->device_memory_bytes);
  }
  if (spec.resources().device_memory() > 0) {
    budget.device_memory_bytes = spec.resources().device_memory();
  }
  if (spec.resources().threads_per_device() > 0) {
    budget.threads_per_rank = spec.resources().threads_per_device();
  }
  return budget;
}

std::string BudgetText(const Budget& budget) {
  return absl::StrCat(budget.device, "/", budget.nodes, "/", budget.ranks, "/",
                      budget.threads_per_rank, "/", budget.device_memory_bytes, "/",
                      budget.external_bytes);
}

bool IsElastic(const v1::JobSpec& spec) {
  const v1::ResourceSpec& resources = spec.resources();
  return spec.layout().dp() == 0 &&
         resources.nodes_max() > std::max<uint32_t>(1, resources.nodes_min());
}

QueueNode QueueNodeOf(const NodeView& node) {
  QueueNode seen;
  seen.name = node.name;
  seen.threads_per_device = node.threads_per_device;
  seen.device_memory_bytes = node.device_memory_bytes;
  seen.cuda = node.cuda;
  seen.ready = node.ready;
  seen.drained = node.drained;
  seen.problem = node.problem;
  seen.free_at_ms.assign(node.devices, kFreeNow);
  for (const auto& [device, until_ms] : node.used) {
    if (device < node.devices) seen.free_at_ms[device] = until_ms;
  }
  return seen;
}

QueuedJob QueuedJobOf(const v1::Job& job) {
  const std::optional<double> seconds = PlannedSeconds(job, job.held_before_seconds());
  return {.id = job.id(),
          .need = NeedOfPlan(job),
          .ranks = std::max<uint32_t>(1, job.plan().layout().ranks()),
          .priority = static_cast<double>(job.spec().priority()),
          .submitted_ms = job.submitted_unix_ms(),
          .planned_ms = seconds.has_value() ? static_cast<int64_t>(*seconds * 1000) : kUnknownMs,
          .bytes = BytesOf(job.plan())};
}

TierBytes BytesOf(const v1::Plan& plan) {
  const uint32_t stages = std::max<uint32_t>(1, plan.layout().pipeline_parallel());
  const int64_t ranks = plan.layout().ranks() / stages;  // of each stage
  TierBytes bytes = {};
  for (const v1::StageMemory& memory : plan.memory()) {
    const size_t tier = memory.tier() == v1::HOST ? 1 : memory.tier() == v1::NVME ? 2 : 0;
    bytes[tier] += ranks * (memory.arena_bytes() + memory.external_bytes());
  }
  return bytes;
}

v1::Placement PlacementOf(const QueueDecision& decision, absl::Span<const QueueNode> nodes) {
  v1::Placement placement;
  uint32_t rank = 0;
  for (const RankPlace& place : decision.ranks) {
    v1::Placement::Rank* placed = placement.add_ranks();
    placed->set_rank(rank++);
    placed->set_worker(nodes[place.node].name);
    placed->set_device(place.device);
  }
  return placement;
}

v1::Reason ReasonOf(WaitFor what) {
  switch (what) {
    case WaitFor::kWorker:
      return v1::REASON_NO_MATCHING_WORKER;
    case WaitFor::kDependency:
      return v1::REASON_DEPENDENCY;
    case WaitFor::kQuota:
      return v1::REASON_QUOTA;
    case WaitFor::kArray:
      return v1::REASON_ARRAY_LIMIT;
    case WaitFor::kPriority:
      return v1::REASON_PRIORITY;
    case WaitFor::kDevices:
      break;
  }
  return v1::REASON_WAITING_FOR_DEVICES;
}

int64_t PlannedEndMs(const v1::Job& job, int64_t now_ms) {
  const bool stops = job.pause_requested() || job.cancel_requested();
  if (stops && !job.has_hang())  // after its present step
    return now_ms + static_cast<int64_t>(job.progress().step_seconds() * 1000);
  const std::optional<double> seconds = PlannedSeconds(job, HeldSeconds(job, now_ms));
  return seconds.has_value() ? now_ms + static_cast<int64_t>(*seconds * 1000) : kUnknownMs;
}

}  // namespace terrace
