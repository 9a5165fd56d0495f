// What does not fit, with states, weights and activations on other tiers or matrices in tiles.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/layout/rules.h"
#include "coordinator/planner/closed_form_error.h"
#include "coordinator/planner/estimate_stages.h"
#include "coordinator/planner/planner_compare.h"

namespace terrace {
namespace {

// Layouts for which parts of the states elsewhere are tried.
constexpr size_t kMovedMax = 256;
// And so many of those that would fit but for their states.
constexpr size_t kBesideStatesMax = 64;
// Where whole matrices do not fit, the largest first.
constexpr int64_t kTileSizes[] = {int64_t{256} << 20, 64 << 20, 16 << 20, 4 << 20, 1 << 20};
// Of the device's bytes: what is larger may not fit when it is compiled.
constexpr double kTight = 0.9;

// Splits whose smallest layout is tried with everything away.
constexpr size_t kAllMovedMax = 64;
// Beside names of recompute; both begin alike.
constexpr const char* kSmallest = "smallest";
constexpr const char* kBesideStates = " beside its states";
constexpr const char* kSmallestOfOne = "smallest of one micro-batch";
// Of those with everything away so many are proposed at last.
constexpr size_t kAwayMax = 128;
// Limits times these are what closed forms may say of layouts that fit.
constexpr double kNearly[] = {1.05, 1.15, kClosedFormLikely};

void KeepSmallest(size_t most, std::vector<Proposal>* proposals) {
  std::stable_sort(proposals->begin(), proposals->end(), [](const Proposal& a, const Proposal& b) {
    return a.memory.total() < b.memory.total();
  });
  if (proposals->size() > most) proposals->resize(most);
}

ArenaLimits Times(double part, const ArenaLimits& limits) {
  const auto times = [part](int64_t bytes) {
    return static_cast<int64_t>(part * static_cast<double>(bytes));
  };
  return {.device_bytes = times(limits.device_bytes),
          .host_bytes = times(limits.host_bytes),
          .nvme_bytes = times(limits.nvme_bytes)};
}

}  // namespace

void Comparison::KeepMovable(const Proposal& one) {
  const SplitKey split = SplitOf(one.layout);
  // As they are, passes in runs are no faster: what is moved comes less often.
  const char* runs = InRuns(one.layout.schedule()) ? " in runs" : "";
  const auto [fastest, is_new] =
      movable_of_.try_emplace({split, absl::StrCat(one.layout.recompute(), runs)}, one);
  if (!is_new && Faster(one, fastest->second)) fastest->second = one;
  KeepBesideItsStates(one, absl::StrCat(one.layout.recompute(), runs, kBesideStates));
  // Which length of a run is the smallest depends on what is away.
  const std::string which = InRuns(one.layout.schedule())
                                ? absl::StrCat(kSmallest, runs, " of ", one.layout.micro_batch())
                            : one.layout.micro_batches() > 1 ? kSmallest
                                                             : kSmallestOfOne;
  const auto [smallest, is_first] = movable_of_.try_emplace({split, which}, one);
  if (!is_first && one.memory.total() < smallest->second.memory.total()) smallest->second = one;
  if (one.seconds >= movable_max_) return;
  movable_.push_back(one);
  if (movable_.size() < 2 * kMovedMax) return;
  KeepFastest(kMovedMax, &movable_);
  movable_max_ = movable_.back().seconds;
}

// Of each split and recompute also the fastest that fits once its states are away: the fastest of
// all has large micro-batches, and for their activations its weights would have to come and go.
void Comparison::KeepBesideItsStates(const Proposal& one, const std::string& which) {
  if (limits_.device_bytes == 0 || one.layout.has_offload()) return;
  const auto best = movable_of_.find({SplitOf(one.layout), which});
  if (best != movable_of_.end() && !Faster(one, best->second)) return;
  v1::Layout moved = one.layout;
  v1::Offload states;
  states.mutable_gradient()->set_host(1);
  states.mutable_optimizer()->set_host(1);
  *moved.mutable_offload() = WithPinned(spec_.layout().offload(), states);
  if (memory_.Memory(Completed(std::move(moved))).total() > limits_.device_bytes) return;
  movable_of_.insert_or_assign({SplitOf(one.layout), which}, one);
}

// The fastest, and those of each split: the fastest of all are much alike.
std::vector<Proposal> Comparison::TakeMovable(bool of_all_splits) {
  KeepFastest(kMovedMax, &movable_);
  if (!of_all_splits) return std::move(movable_);
  std::vector<Proposal> of_splits, beside;
  for (auto& [key, one] : movable_of_) {
    const bool is_beside = absl::EndsWith(key.second, kBesideStates);
    (is_beside ? beside : of_splits).push_back(std::move(one));
  }
  KeepFastest(kMovedMax, &of_splits);
  KeepFastest(kBesideStatesMax, &beside);
  std::vector<Proposal> movable = std::move(movable_);
  std::move(of_splits.begin(), of_splits.end(), std::back_inserter(movable));
  std::move(beside.begin(), beside.end(), std::back_inserter(movable));
  return movable;
}

std::vector<v1::Layout> Comparison::Formats(const v1::Layout& layout, bool all_away) const {
  const std::string products(ProductFormat(layout.precision()));
  const bool prefetched = FarthestTier(layout.offload().parameter()) != v1::DEVICE &&
                          (layout.zero_stage() == 0 || layout.zero_stage() == 3);
  // Masters that leave with the moments leave half of the weights on the device.
  const bool halved = all_away && layout.zero_stage() == 0 &&
                      FarthestTier(layout.offload().optimizer()) != v1::DEVICE;
  if (!(prefetched || halved) || products == "f32" || layout.stochastic_rounding() ||
      !spec_.formats().parameter().empty()) {
    return {layout};
  }
  std::vector<v1::Layout> formats = {layout, layout};
  formats[0].set_parameter_format(products);
  formats[1].set_parameter_format("f32");
  return formats;
}

std::vector<OffloadWay> Comparison::Ways() const {
  std::vector<OffloadWay> ways(std::begin(kHostWays), std::end(kHostWays));
  if (spec_.resources().nvme().paths_size() > 0) {
    ways.insert(ways.end(), std::begin(kNvmeWays), std::end(kNvmeWays));
  }
  return ways;
}

std::vector<v1::Layout> Comparison::Farthest(const Proposal& one, OffloadWay way) const {
  v1::Layout farthest = one.layout;
  *farthest.mutable_offload() = WithPinned(spec_.layout().offload(), FarthestOffload(way));
  farthest = Completed(std::move(farthest));
  ChooseChunks(&farthest);
  return Formats(farthest, /*all_away=*/false);
}

std::optional<Proposal> Comparison::Moved(const v1::Layout& farthest, OffloadWay way,
                                          const ArenaLimits& limits) {
  ++compared_;
  auto moved = WithOffload(memory_, farthest, spec_.layout().offload(), way, limits);
  if (!moved.has_value()) return std::nullopt;
  Proposal proposal = {
      .seconds = StepSeconds(*moved), .memory = memory_.Memory(*moved), .way = way};
  proposal.layout = *std::move(moved);
  return proposal;
}

// What does not fit, with as much as is needed elsewhere.
void Comparison::AddMoved(bool of_all_splits) {
  std::vector<Proposal> smallest_of_splits;
  for (const auto& [key, one] : movable_of_) {
    if (!of_all_splits) break;
    if (absl::StartsWith(key.second, kSmallest)) smallest_of_splits.push_back(one);
  }
  KeepSmallest(kAllMovedMax, &smallest_of_splits);
  for (const Proposal& one : TakeMovable(of_all_splits)) {
    for (const OffloadWay way : Ways()) {
      for (const v1::Layout& layout : Farthest(one, way)) {
        const std::optional<Proposal> moved = Moved(layout, way, limits_);
        if (moved.has_value()) Keep(*moved, /*within=*/true);
      }
    }
  }
  AddAllMoved(std::move(smallest_of_splits));
}

std::vector<Proposal> Comparison::TakeNearly() {
  std::vector<std::pair<double, Proposal>> order;
  // As they are the smallest of each split: of layouts that are alike but for what is recomputed
  // only the fastest beyond the limits was kept.
  for (const auto& [key, one] : movable_of_) {
    if (!absl::StartsWith(key.second, kSmallest)) continue;
    const auto* const part = std::find_if(std::begin(kNearly), std::end(kNearly), [&](double p) {
      return Within(one.memory, Times(p, limits_));
    });
    if (part != std::end(kNearly)) order.emplace_back(*part, one);
  }
  std::map<std::pair<SplitKey, OffloadWay>, std::pair<double, Proposal>> nearest;
  if (!OffersTiers(spec_)) {
    movable_.clear();
    movable_of_.clear();
  }
  for (const Proposal& one : TakeMovable(/*of_all_splits=*/true)) {
    for (const OffloadWay way : Ways()) {
      const auto key = std::pair(SplitOf(one.layout), way);
      for (const v1::Layout& layout : Farthest(one, way)) {
        for (const double part : kNearly) {
          const auto best = nearest.find(key);
          if (best != nearest.end() && part > best->second.first) break;
          const std::optional<Proposal> moved = Moved(layout, way, Times(part, limits_));
          if (!moved.has_value()) continue;
          if (best == nearest.end() || part < best->second.first ||
              Faster(*moved, best->second.second)) {
            nearest.insert_or_assign(key, std::pair(part, *moved));
          }
          break;
        }
      }
    }
  }
  for (auto& [key, one] : nearest) order.push_back(std::move(one));
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.first, a.second.seconds) < std::tuple(b.first, b.second.seconds);
  });
  std::vector<Proposal> nearly;
  for (auto& [part, one] : order) nearly.push_back(std::move(one));
  return nearly;
}

// The smallest of each split with everything away, with blocks recomputed and with nothing: if
// anything fits, one of them does.
void Comparison::AddAllMoved(std::vector<Proposal> bases) {
  bases.push_back(*smallest_);
  std::vector<v1::Offload> offloads = Offloads(spec_.resources().nvme().paths_size() > 0);
  for (size_t i = offloads.size(); i-- > 0;) {
    offloads.push_back(offloads[i]);
    offloads.back().mutable_activation()->set_host(1);
  }
  const bool open = spec_.layout().recompute().empty() && spec_.layout().recompute_layers().empty();
  for (const Proposal& base : bases) {
    for (const v1::Offload& offload : offloads) {
      Proposal moved = base;
      *moved.layout.mutable_offload() = WithPinned(spec_.layout().offload(), offload);
      if (moved.layout.zero_stage() == 1 || moved.layout.zero_stage() == 2) {
        moved.layout.mutable_offload()->clear_parameter();
      }
      moved.layout = Completed(std::move(moved.layout));
      for (const v1::Layout& layout : Formats(moved.layout, /*all_away=*/true)) {
        away_.push_back(Compare(layout));
        for (const char* recompute : {"block", "none"}) {
          if (!open || layout.recompute() == recompute) continue;
          v1::Layout other = layout;
          other.set_recompute(recompute);
          away_.push_back(Compare(std::move(other)));
        }
      }
    }
  }
}

std::vector<Proposal> Comparison::Away() const {
  const auto part = [this](const Proposal& one) {
    const auto of = [](int64_t bytes, int64_t limit) {
      return limit == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(limit);
    };
    return std::max({of(one.memory.total(), limits_.device_bytes),
                     of(one.memory.host_bytes, limits_.host_bytes),
                     of(one.memory.nvme_bytes, limits_.nvme_bytes)});
  };
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < away_.size(); ++i) {
    if (!Infeasible(away_[i].memory, away_[i].layout, spec_, budget_))
      order.emplace_back(part(away_[i]), i);
  }
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kAwayMax));
  std::vector<Proposal> away;
  for (const auto& [of_limits, i] : order) away.push_back(away_[i]);
  return away;
}

// Matrices may be tiled when weights are prefetched for each use; those that may move will be.
bool Comparison::Tileable(const v1::Layout& layout) const {
  if (layout.tensor_parallel() != 1) return false;
  return layout.zero_stage() == 3 ||
         (layout.zero_stage() == 0 &&
          (search_ == Search::kTiers || FarthestTier(layout.offload().parameter()) != v1::DEVICE));
}

// Where hardly anything fits: the smallest that can be tiled, as it is and with its states away, in
// the largest tiles that fit.
void Comparison::AddTiled() {
  const double enough = kTight * static_cast<double>(limits_.device_bytes);
  const bool tight =
      limits_.device_bytes > 0 && static_cast<double>(smallest_->memory.total()) > enough;
  if (!tight || !tileable_.has_value()) return;
  const v1::Layout base = tileable_->layout;
  std::vector<v1::Layout> layouts = {base};
  if (search_ == Search::kTiers) {
    for (const v1::Offload& offload : Offloads(spec_.resources().nvme().paths_size() > 0)) {
      v1::Layout moved = base;
      *moved.mutable_offload() = WithPinned(spec_.layout().offload(), offload);
      for (v1::Layout& layout : Formats(Completed(std::move(moved)), /*all_away=*/false))
        layouts.push_back(std::move(layout));
    }
  }
  for (v1::Layout& layout : layouts) {
    for (const int64_t bytes : kTileSizes) {
      layout.set_tile_bytes(bytes);
      if (TileBytes(layout) > 0 && Within(Compare(layout).memory, limits_)) break;
    }
  }
}

}  // namespace terrace
