// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/preempt.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace terrace {
namespace {

struct Choice {
  double lost = 0;
  std::vector<size_t> gangs;
};

class Search {
 public:
  Search(const Need& need, absl::Span<const QueueNode> nodes, absl::Span<const HeldGang> gangs)
      : need_(need), nodes_(nodes), gangs_(gangs) {
    for (size_t node = 0; node < nodes.size(); ++node) {
      const bool apart = need.nodes > 1 && !nodes[node].problem.empty();
      if (nodes[node].ready && !apart && Matches(need, nodes[node])) matching_.push_back(node);
    }
    for (size_t gang = 0; gang < gangs.size(); ++gang) {
      if (gangs[gang].stops) free_.insert(gang);
    }
  }

  std::vector<size_t> Find() {
    if (WorkersFree() >= need_.nodes || matching_.size() < need_.nodes) return {};
    std::set<size_t> stopped;
    while (WorkersFree() < need_.nodes) {
      const std::optional<Choice> next = CheapestWorker();
      if (!next.has_value()) return {};
      stopped.insert(next->gangs.begin(), next->gangs.end());
      free_.insert(next->gangs.begin(), next->gangs.end());
    }
    return WithoutNeedless(stopped);
  }

 private:
  // Free devices there, with those of the gangs that stop.
  uint32_t FreeOn(size_t node) const {
    uint32_t free = FreeDevices(nodes_[node], kSoon);
    for (const size_t gang : free_) {
      const auto held = gangs_[gang].devices.find(node);
      if (held != gangs_[gang].devices.end()) free += held->second;
    }
    return free;
  }

  uint32_t WorkersFree() const {
    return static_cast<uint32_t>(
        std::count_if(matching_.begin(), matching_.end(),
                      [this](size_t node) { return FreeOn(node) >= need_.devices; }));
  }

  // The worker that is not free and costs the least to free.
  std::optional<Choice> CheapestWorker() const {
    std::optional<Choice> best;
    for (const size_t node : matching_) {
      const uint32_t free = FreeOn(node);
      if (free >= need_.devices) continue;
      std::optional<Choice> choice = CheapestOn(node, need_.devices - free);
      if (choice.has_value() && (!best.has_value() || choice->lost < best->lost))
        best = std::move(choice);
    }
    return best;
  }

  // cheapest[k]: of the gangs looked at so far, those that lose the least and hold k devices there,
  // or more where k is all that are wanted.
  std::optional<Choice> CheapestOn(size_t node, uint32_t wanted) const {
    std::vector<std::optional<Choice>> cheapest(wanted + 1);
    cheapest[0] = Choice{};
    for (size_t gang = 0; gang < gangs_.size(); ++gang) {
      const auto held = gangs_[gang].devices.find(node);
      if (!gangs_[gang].may_stop || free_.contains(gang) || held == gangs_[gang].devices.end())
        continue;
      for (uint32_t from = wanted; from-- > 0;) {
        if (!cheapest[from].has_value()) continue;
        std::optional<Choice>& to = cheapest[std::min(wanted, from + held->second)];
        const double lost = cheapest[from]->lost + gangs_[gang].lost_device_seconds;
        if (to.has_value() && to->lost <= lost) continue;
        Choice with = *cheapest[from];
        with.lost = lost;
        with.gangs.push_back(gang);
        to = std::move(with);
      }
    }
    return cheapest[wanted];
  }

  // A gang that was chosen for one worker may be needless once others were chosen for the next.
  std::vector<size_t> WithoutNeedless(const std::set<size_t>& stopped) {
    std::vector<size_t> dearest(stopped.begin(), stopped.end());
    std::stable_sort(dearest.begin(), dearest.end(), [this](size_t a, size_t b) {
      return gangs_[a].lost_device_seconds > gangs_[b].lost_device_seconds;
    });
    std::vector<size_t> needed;
    for (const size_t gang : dearest) {
      free_.erase(gang);
      if (WorkersFree() >= need_.nodes) continue;
      free_.insert(gang);
      needed.push_back(gang);
    }
    std::sort(needed.begin(), needed.end());
    return needed;
  }

  const Need& need_;
  const absl::Span<const QueueNode> nodes_;
  const absl::Span<const HeldGang> gangs_;
  std::vector<size_t> matching_;  // workers
  std::set<size_t> free_;         // gangs whose devices count as free
};

}  // namespace

std::vector<size_t> GangsToStop(const Need& need, absl::Span<const QueueNode> nodes,
                                absl::Span<const HeldGang> gangs) {
  return Search(need, nodes, gangs).Find();
}

}  // namespace terrace
