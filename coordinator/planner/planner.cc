// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/planner/estimate.h"
#include "coordinator/planner/fit.h"
#include "coordinator/planner/layout_rules.h"
#include "coordinator/planner/space.h"

namespace terrace {
namespace {

// What is proposed at most: the fastest, besides those that need less memory.
constexpr size_t kProposedMax = 64;
// Kept while there are more to come.
constexpr size_t kKeptMax = 4096;
// Layouts for which parts of the states elsewhere are tried.
constexpr size_t kMovedMax = 256;
// A proposal for its memory needs this part of the last one's at most.
constexpr double kSmaller = 0.9;

bool Faster(const Proposal& a, const Proposal& b) { return a.seconds < b.seconds; }

void KeepFastest(size_t most, std::vector<Proposal>* proposals) {
  std::stable_sort(proposals->begin(), proposals->end(), Faster);
  if (proposals->size() > most) proposals->resize(most);
}

ArenaLimits ArenaLimitsOf(const v1::JobSpec& spec, const Budget& budget) {
  const TierLimits limits = LimitsOf(spec);
  return {.device_bytes =
              budget.device_memory_bytes == 0
                  ? 0
                  : std::max<int64_t>(1, budget.device_memory_bytes - budget.external_bytes),
          .host_bytes = limits.host_bytes,
          .nvme_bytes = limits.nvme_bytes};
}

// Compares the layouts it is told of, by closed form.
class Comparison {
 public:
  Comparison(const v1::JobSpec& spec, const Model& model, const Budget& budget, Search search)
      : spec_(spec),
        budget_(budget),
        search_(search),
        limits_(ArenaLimitsOf(spec, budget)),
        memory_(EstimateModel(spec, model)),
        time_(EstimateModel(spec, model), budget.profile) {}

  void Add(v1::Layout layout) {
    const v1::LayoutSpec& pinned = spec_.layout();
    const bool open = search_ != Search::kPlain && pinned.recompute().empty() &&
                      pinned.recompute_layers().empty();
    if (!open) {
      Compare(std::move(layout));
      return;
    }
    // Each kind that does not fit gives way, in some layers, to the next.
    std::optional<Proposal> too_large;
    for (const char* recompute : {"none", "selective", "block", "sqrt"}) {
      layout.set_recompute(recompute);
      const Proposal one = Compare(layout);
      const bool fits = Within(one.memory, limits_);
      if (fits && too_large.has_value()) AddMixed(*too_large, one);
      too_large.reset();
      if (!fits) too_large = one;
      if (fits && recompute == std::string("block")) break;
    }
  }

  Proposals Take() {
    if (search_ == Search::kTiers) AddMoved();
    std::vector<Proposal> smaller = Smaller();
    KeepFastest(search_ == Search::kPlain
                    ? SIZE_MAX
                    : kProposedMax - std::min(kProposedMax / 2, smaller.size()),
                &fastest_);
    Proposals proposals = {.best = std::move(fastest_), .compared = compared_};
    for (Proposal& one : smaller) {
      const auto same = [&](const Proposal& other) {
        return other.seconds == one.seconds && other.memory.total() == one.memory.total();
      };
      if (std::none_of(proposals.best.begin(), proposals.best.end(), same)) {
        proposals.best.push_back(std::move(one));
      }
    }
    std::stable_sort(proposals.best.begin(), proposals.best.end(), Faster);
    return proposals;
  }

 private:
  Proposal Compare(v1::Layout layout) {
    ++compared_;
    Proposal one = {.memory = memory_.Memory(layout)};
    const MemoryEstimate elsewhere = {.host_bytes = one.memory.host_bytes,
                                      .nvme_bytes = one.memory.nvme_bytes};
    const bool smallest =
        !smallest_.has_value() ||
        (one.memory.total() < smallest_->memory.total() && !Hopeless(elsewhere, spec_, budget_));
    const bool plain = search_ == Search::kPlain;
    const bool hopeless = !plain && Hopeless(one.memory, spec_, budget_);
    const bool movable = search_ == Search::kTiers && !Within(one.memory, limits_);
    if (!hopeless || smallest || movable) one.seconds = time_.StepSeconds(layout);
    one.layout = std::move(layout);
    if (smallest) smallest_ = one;
    if (movable) Keep(one, &movable_);
    if (!hopeless) Keep(one, &fastest_);
    return one;
  }

  void Keep(const Proposal& one, std::vector<Proposal>* proposals) {
    if (proposals->size() >= 2 * kKeptMax) {
      if (proposals == &fastest_) smaller_ = Smaller();
      KeepFastest(kKeptMax, proposals);
    }
    proposals->push_back(one);
  }

  // Just as much of `next`, which fits, as `large` needs to fit too.
  void AddMixed(const Proposal& large, const Proposal& next) {
    if (next.seconds == 0 || large.seconds == 0 || large.layout.has_offload()) return;
    ++compared_;
    const double part = static_cast<double>(large.memory.total() - limits_.device_bytes) /
                        static_cast<double>(large.memory.total() - next.memory.total());
    Proposal mixed = next;
    mixed.seconds = large.seconds + part * (next.seconds - large.seconds);
    mixed.to_fit = true;
    Keep(mixed, &fastest_);
  }

  // The fastest of those that fit, the fastest of those a tenth smaller, and so on.
  std::vector<Proposal> Smaller() const {
    std::vector<Proposal> all = smaller_;
    all.insert(all.end(), fastest_.begin(), fastest_.end());
    if (smallest_.has_value()) all.push_back(*smallest_);
    std::stable_sort(all.begin(), all.end(), Faster);
    std::vector<Proposal> front;
    for (Proposal& one : all) {
      if (one.to_fit) continue;
      const bool last = one.memory.total() == smallest_->memory.total();
      const double enough =
          front.empty() ? 1e300 : kSmaller * static_cast<double>(front.back().memory.total());
      if (static_cast<double>(one.memory.total()) > enough &&
          !(last && one.memory.total() < front.back().memory.total())) {
        continue;
      }
      front.push_back(std::move(one));
    }
    return front;
  }

  // What does not fit, with as much as is needed elsewhere.
  void AddMoved() {
    KeepFastest(kMovedMax, &movable_);
    std::vector<OffloadWay> ways(std::begin(kHostWays), std::end(kHostWays));
    if (spec_.resources().nvme().paths_size() > 0) {
      ways.insert(ways.end(), std::begin(kNvmeWays), std::end(kNvmeWays));
    }
    const std::vector<Proposal> movable = std::move(movable_);
    for (const Proposal& one : movable) {
      for (const OffloadWay way : ways) {
        ++compared_;
        auto moved = WithOffload(memory_, one.layout, spec_.layout().offload(), way, limits_);
        if (!moved.has_value()) continue;
        Proposal proposal = {.seconds = time_.StepSeconds(*moved),
                             .memory = memory_.Memory(*moved)};
        proposal.layout = *std::move(moved);
        Keep(proposal, &fastest_);
      }
    }
    AddAllMoved();
  }

  // The smallest of all with everything away: if anything fits, it does.
  void AddAllMoved() {
    const Proposal base = *smallest_;
    for (const v1::Offload& offload : Offloads(spec_.resources().nvme().paths_size() > 0)) {
      Proposal moved = base;
      *moved.layout.mutable_offload() = WithPinned(spec_.layout().offload(), offload);
      if (moved.layout.zero_stage() == 1 || moved.layout.zero_stage() == 2) {
        moved.layout.mutable_offload()->clear_parameter();
      }
      moved.layout = Completed(std::move(moved.layout));
      Compare(moved.layout);
    }
  }

  const v1::JobSpec& spec_;
  const Budget& budget_;
  const Search search_;
  const ArenaLimits limits_;
  const MemoryEstimator memory_;
  const TimeEstimator time_;
  std::vector<Proposal> fastest_;
  std::vector<Proposal> movable_;
  std::vector<Proposal> smaller_;
  std::optional<Proposal> smallest_;
  int64_t compared_ = 0;
};

}  // namespace

absl::StatusOr<Proposals> Propose(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                  Search search) {
  Comparison comparison(spec, model, budget, search);
  RETURN_IF_ERROR(ForEachLayout(spec, model, budget, search,
                                [&](const v1::Layout& layout) { comparison.Add(layout); }));
  return comparison.Take();
}

absl::StatusOr<std::vector<v1::Layout>> Candidates(const v1::JobSpec& spec, const Model& model,
                                                   const Budget& budget, Search search) {
  ASSIGN_OR_RETURN(Proposals proposals, Propose(spec, model, budget, search));
  std::vector<v1::Layout> layouts;
  for (Proposal& one : proposals.best) layouts.push_back(std::move(one.layout));
  return layouts;
}

bool Hopeless(const MemoryEstimate& memory, const v1::JobSpec& spec, const Budget& budget) {
  const TierLimits limits = LimitsOf(spec);
  const auto over = [](int64_t bytes, int64_t limit) {
    return limit > 0 && static_cast<double>(bytes) > kHopeless * static_cast<double>(limit);
  };
  return over(memory.total(), budget.device_memory_bytes) ||
         over(memory.host_bytes, limits.host_bytes) || over(memory.nvme_bytes, limits.nvme_bytes);
}

TierLimits LimitsOf(const v1::JobSpec& spec) {
  return {.host_bytes = spec.resources().host_memory(),
          .nvme_bytes = spec.resources().nvme().bytes()};
}

bool OffersTiers(const v1::JobSpec& spec) {
  return spec.resources().host_memory() > 0 || spec.resources().nvme().paths_size() > 0;
}

std::vector<v1::Offload> Offloads(bool to_nvme) {
  std::vector<v1::Offload> offloads(to_nvme ? 4 : 2);
  offloads[0].mutable_optimizer()->set_host(1);
  offloads[1].mutable_optimizer()->set_host(1);
  offloads[1].mutable_parameter()->set_host(1);
  for (size_t i = 2; i < offloads.size(); ++i) {
    const bool all = i == 3;
    v1::Offload& offload = offloads[i];
    offload.mutable_optimizer()->set_nvme(1);
    for (v1::TierShares* shares : {offload.mutable_parameter(), offload.mutable_gradient()}) {
      all ? shares->set_nvme(1) : shares->set_host(1);
    }
  }
  return offloads;
}

uint32_t NodesFor(const v1::JobSpec& spec) {
  const v1::LayoutSpec& layout = spec.layout();
  const v1::ResourceSpec& resources = spec.resources();
  const uint32_t least = std::max<uint32_t>(1, resources.nodes_min());
  if (layout.dp() == 0) return least;
  uint64_t ranks = layout.dp();
  for (const uint64_t degree : {layout.tp(), layout.pp(), layout.cp()}) {
    ranks *= std::max<uint64_t>(1, degree);
  }
  const uint64_t devices = std::max<uint32_t>(1, resources.devices_per_node());
  const uint64_t nodes = (ranks + devices - 1) / devices;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(nodes, least, std::max(least, resources.nodes_max())));
}

}  // namespace terrace
