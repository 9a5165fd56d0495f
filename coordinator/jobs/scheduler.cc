// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/scheduler.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/text/number_format.h"

namespace terrace {
namespace {

// What a job needs: `nodes` workers with these devices each.
struct Need {
  uint32_t nodes = 1;
  uint32_t devices = 1;      // per node
  uint32_t threads = 0;      // per device; 0: any
  int64_t device_bytes = 0;  // 0: any
  bool cuda = false;
  bool either = false;  // the job did not say which
  auto operator<=>(const Need&) const = default;
};

bool Matches(const Need& need, const NodeView& node) {
  return !node.drained && need.cuda == node.cuda && node.devices >= need.devices &&
         node.threads_per_device >= need.threads &&
         (node.device_memory_bytes == 0 || node.device_memory_bytes >= need.device_bytes);
}

std::vector<const NodeView*> Matching(const Need& need, absl::Span<const NodeView> nodes) {
  std::vector<const NodeView*> matching;
  for (const NodeView& node : nodes) {
    if (Matches(need, node)) matching.push_back(&node);
  }
  return matching;
}

uint32_t FreeDevices(const NodeView& node) {
  if (!node.ready) return 0;
  return node.devices - std::min<uint32_t>(node.devices, static_cast<uint32_t>(node.used.size()));
}

std::string Count(int64_t n, const std::string& thing) {
  return absl::StrCat(n, " ", thing, n == 1 ? "" : "s");
}

std::string Describe(const Need& need) {
  std::string text = absl::StrCat(Count(need.nodes, "worker"), " with ",
                                  Count(need.devices, need.cuda ? "CUDA device" : "device"));
  if (need.device_bytes > 0) absl::StrAppend(&text, " of ", FormatBytes(need.device_bytes));
  if (need.threads > 0) absl::StrAppend(&text, " and ", Count(need.threads, "thread"), " a device");
  if (need.nodes > 1) absl::StrAppend(&text, " each");
  return text;
}

// The way out where there are workers, but with devices of the other kind.
std::string OtherDevices(bool cuda) {
  return cuda ? ", which has no CUDA devices: start terrace-worker where nvidia-smi lists one, set "
                "resources.device: cpu, or "
              : ", which has CUDA devices: set resources.device: cuda, start terrace-worker with "
                "--device cpu, or ";
}

std::string AllDrained(absl::Span<const NodeView> nodes) {
  const std::string who =
      nodes.size() == 1 ? absl::StrCat("worker ", nodes[0].name, " is drained")
                        : absl::StrCat("all ", nodes.size(), " registered workers are drained");
  return absl::StrCat(who, ": take one back into use with `terrace drain ", nodes[0].name,
                      " --disable`, or start more workers");
}

// "needs 2 workers with 4 devices each; 1 of the 3 registered matches (the largest offers 2
// devices)"
std::string NoMatchMessage(const Need& need, uint32_t matching, absl::Span<const NodeView> all) {
  std::string text = absl::StrCat("needs ", Describe(need), "; ");
  if (all.empty()) return absl::StrCat(text, "no worker is registered: start terrace-worker");
  std::vector<const NodeView*> nodes;
  for (const NodeView& node : all) {
    if (!node.drained) nodes.push_back(&node);
  }
  const size_t drained = all.size() - nodes.size();
  if (nodes.empty()) return absl::StrCat(text, AllDrained(all));
  absl::StrAppend(&text, matching, " of the ", nodes.size(), " registered ",
                  matching == 1 ? "matches" : "match");
  if (drained > 0)
    absl::StrAppend(&text, ", ", drained, " more ", drained == 1 ? "is" : "are", " drained");
  const NodeView& largest = **std::max_element(
      nodes.begin(), nodes.end(),
      [](const NodeView* a, const NodeView* b) { return a->devices < b->devices; });
  absl::StrAppend(&text, " (", largest.name, " offers ", Count(largest.devices, "device"));
  if (largest.device_memory_bytes > 0) {
    absl::StrAppend(&text, " of ", FormatBytes(largest.device_memory_bytes));
  }
  absl::StrAppend(&text, " with ", Count(largest.threads_per_device, "thread"), ")");
  return absl::StrCat(text,
                      need.cuda == largest.cuda || need.either ? ": " : OtherDevices(need.cuda),
                      "start more workers or ask for less under resources");
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

// Takes the devices of one gang: ranks in order, node after node.
v1::Placement Take(uint32_t ranks, uint32_t ranks_per_node, const std::vector<NodeView*>& nodes) {
  v1::Placement placement;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    NodeView& node = *nodes[rank / ranks_per_node];
    uint32_t device = 0;
    while (node.used.contains(device)) ++device;
    node.used.insert(device);
    v1::Placement::Rank* placed = placement.add_ranks();
    placed->set_rank(rank);
    placed->set_worker(node.name);
    placed->set_device(device);
  }
  return placement;
}

// One run through the queue. What jobs of the same need have in common is found once, for the first
// of them: thousands may wait behind a full cluster.
class Round {
 public:
  explicit Round(absl::Span<const NodeView> nodes)
      : nodes_(nodes.begin(), nodes.end()), held_by_(nodes.size()) {}

  Decision Consider(const v1::Job& job) {
    const Need need = NeedOfPlan(job);
    Group& group = GroupOf(need);
    if (group.settled) return {.job = job.id(), .reason = group.reason, .message = group.message};
    Decision decision{.job = job.id()};
    if (group.matching.size() < need.nodes) {
      group.settled = true;
      decision.reason = group.reason = v1::REASON_NO_MATCHING_WORKER;
      decision.message = group.message =
          NoMatchMessage(need, static_cast<uint32_t>(group.matching.size()), nodes_);
      return decision;
    }
    std::vector<NodeView*> free = FreeAmong(group.matching, need);
    if (free.size() >= need.nodes) {
      decision.placement =
          Take(std::max<uint32_t>(1, job.plan().layout().ranks()), need.devices, free);
      return decision;
    }
    // All of its workers are kept for somebody: for the next of that need nothing changes any more.
    group.settled = !AheadOn(group.matching).empty();
    decision.reason = group.reason = v1::REASON_WAITING_FOR_DEVICES;
    decision.message = group.message = WaitMessage(need, group.matching, free.size());
    for (const size_t node : group.matching) {
      if (held_by_[node].empty()) held_by_[node] = job.id();
    }
    return decision;
  }

 private:
  struct Group {
    std::vector<size_t> matching;  // nodes
    // Every further job of this need waits, for this reason.
    bool settled = false;
    v1::Reason reason = v1::REASON_NONE;
    std::string message;
  };

  Group& GroupOf(const Need& need) {
    const auto [found, is_new] = groups_.try_emplace(need);
    if (!is_new) return found->second;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      if (Matches(need, nodes_[node])) found->second.matching.push_back(node);
    }
    return found->second;
  }

  // Of those with enough devices the fullest come first, so that empty workers stay whole for
  // larger jobs; then by name. Only the `need.nodes` that would be taken are in that order.
  std::vector<NodeView*> FreeAmong(const std::vector<size_t>& matching, const Need& need) {
    std::vector<NodeView*> free;
    for (const size_t index : matching) {
      NodeView& node = nodes_[index];
      if (need.nodes > 1 && !node.problem.empty()) continue;
      if (held_by_[index].empty() && FreeDevices(node) >= need.devices) free.push_back(&node);
    }
    const auto taken = std::min<size_t>(need.nodes, free.size());
    std::partial_sort(free.begin(), free.begin() + static_cast<ptrdiff_t>(taken), free.end(),
                      [](const NodeView* a, const NodeView* b) {
                        return std::make_tuple(FreeDevices(*a), std::cref(a->name)) <
                               std::make_tuple(FreeDevices(*b), std::cref(b->name));
                      });
    return free;
  }

  // The waiting job that keeps the last of these that is kept; empty: none is.
  std::string AheadOn(const std::vector<size_t>& matching) const {
    for (auto node = matching.rbegin(); node != matching.rend(); ++node) {
      if (!held_by_[*node].empty()) return held_by_[*node];
    }
    return "";
  }

  std::string WaitMessage(const Need& need, const std::vector<size_t>& matching,
                          size_t enough) const {
    uint32_t devices = 0;
    uint32_t free = 0;
    for (const size_t node : matching) {
      devices += nodes_[node].devices;
      free += FreeDevices(nodes_[node]);
    }
    std::string text =
        absl::StrCat("needs ", Describe(need), "; ", free, " of the ", devices, " devices on ",
                     Count(matching.size(), "matching worker"), " are free now");
    const std::string ahead = AheadOn(matching);
    if (!ahead.empty()) return absl::StrCat(text, ", and job ", ahead, " is ahead of it");
    if (need.nodes > 1) {
      absl::StrAppend(&text, " (", enough, " of the ", need.nodes, " workers needed have enough)");
      for (const size_t index : matching) {
        const NodeView& node = nodes_[index];
        if (!node.problem.empty()) absl::StrAppend(&text, "; ", node.name, ": ", node.problem);
      }
    }
    return text;
  }

  std::vector<NodeView> nodes_;
  std::vector<std::string> held_by_;  // of each node: the waiting job that keeps it
  std::map<Need, Group> groups_;
};

}  // namespace

absl::StatusOr<Budget> BudgetFor(const v1::JobSpec& spec, absl::Span<const NodeView> nodes) {
  Need need = NeedOfSpec(spec);
  need.nodes = NodesFor(spec);
  // GPUs wherever there are enough, unless the spec says otherwise.
  const std::string& device = spec.resources().device();
  need.cuda = device != "cpu";
  need.either = device != "cpu" && device != "cuda";
  std::vector<const NodeView*> matching = Matching(need, nodes);
  if (matching.size() < need.nodes && need.either) {
    need.cuda = false;
    std::vector<const NodeView*> others = Matching(need, nodes);
    // Where neither are enough, the message is of those of which there are more.
    need.cuda = matching.size() > others.size();
    if (!need.cuda) matching = std::move(others);
  }
  if (matching.size() < need.nodes) {
    return absl::NotFoundError(NoMatchMessage(need, static_cast<uint32_t>(matching.size()), nodes));
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

std::vector<Decision> Schedule(absl::Span<const v1::Job* const> waiting,
                               absl::Span<const NodeView> nodes) {
  std::vector<const v1::Job*> order(waiting.begin(), waiting.end());
  std::stable_sort(order.begin(), order.end(), [](const v1::Job* a, const v1::Job* b) {
    return std::make_tuple(-a->spec().priority(), a->submitted_unix_ms()) <
           std::make_tuple(-b->spec().priority(), b->submitted_unix_ms());
  });
  Round round(nodes);
  std::vector<Decision> decisions;
  for (const v1::Job* job : order) decisions.push_back(round.Consider(*job));
  return decisions;
}

}  // namespace terrace
