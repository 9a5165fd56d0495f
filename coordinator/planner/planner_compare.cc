// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planner_compare.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "coordinator/planner/estimate_length.h"
#include "coordinator/planner/layout_rules.h"
#include "coordinator/planner/sample_sizes.h"

namespace terrace {
namespace {

// What is proposed at most, half of it of the kind that has the most layouts; what is proposed for
// its memory counts.
constexpr size_t kProposedMax = 64;
// Of layouts that are alike: those within the limits, and those beyond, which say what more memory
// would be worth.
constexpr size_t kAlikeMax = 2, kBeyondMax = 1;
// Of a kind's proposals those beyond the limits are at most such a part where others are within.
constexpr size_t kBeyondParts = 4;
// Layouts for which parts of the states elsewhere are tried.
constexpr size_t kMovedMax = 256;
// A proposal for its memory needs this part of the last one's at most.
constexpr double kSmaller = 0.9;
// Where whole matrices do not fit, the largest first.
constexpr int64_t kTileSizes[] = {int64_t{256} << 20, 64 << 20, 16 << 20, 4 << 20, 1 << 20};
// Of what is offloaded a micro-batch moves weights there twice and gradients there and back. Beyond
// so many chunks in a step a stage's program is too long to compile or check.
constexpr int64_t kChunkPasses = 4, kChunksOfStep = 500'000;
constexpr int64_t kChunkBytesMax = int64_t{256} << 20;
// Of a layout with an offload about so many instructions are compiled to compare it: more of them,
// in larger chunks, keep others from being compared. What copies pass through (compiler/staging.h)
// grows with chunks, to this part of the host's memory at most.
constexpr double kComparedLength = 60'000;
constexpr int64_t kComparedChunkMax = int64_t{64} << 20;
constexpr int64_t kStagingChunks = 16, kStagingParts = 32;
// Of what is compiled only to show that nothing fits.
constexpr double kShownLength = 600'000;
// Of the device's bytes: what is larger may not fit when it is compiled.
constexpr double kTight = 0.9;

// Splits whose smallest layout is tried with everything away.
constexpr size_t kAllMovedMax = 64;
// Beside names of recompute.
constexpr const char* kSmallest = "smallest";
constexpr const char* kSmallestOfOne = "smallest of one micro-batch";
// Of those with everything away so many are proposed at last.
constexpr size_t kAwayMax = 128;

void KeepSmallest(size_t most, std::vector<Proposal>* proposals) {
  std::stable_sort(proposals->begin(), proposals->end(), [](const Proposal& a, const Proposal& b) {
    return a.memory.total() < b.memory.total();
  });
  if (proposals->size() > most) proposals->resize(most);
}

bool Faster(const Proposal& a, const Proposal& b) { return a.seconds < b.seconds; }

void KeepFastest(size_t most, std::vector<Proposal>* proposals) {
  std::stable_sort(proposals->begin(), proposals->end(), Faster);
  if (proposals->size() > most) proposals->resize(most);
}

// Into those sorted by time; of equals the first stays ahead.
void Insert(const Proposal& one, size_t most, std::vector<Proposal>* proposals) {
  if (proposals->size() == most && !Faster(one, proposals->back())) return;
  proposals->insert(std::upper_bound(proposals->begin(), proposals->end(), one, Faster), one);
  if (proposals->size() > most) proposals->pop_back();
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

uint32_t ClassesAway(const v1::Offload& offload) {
  uint32_t classes = 0;
  for (const v1::TierShares* shares :
       {&offload.parameter(), &offload.gradient(), &offload.optimizer(), &offload.activation()}) {
    classes = 4 * classes + static_cast<uint32_t>(FarthestTier(*shares));
  }
  return classes;
}

// Of what is compiled to compare it.
double SampledLength(const EstimateModel& model, const v1::Layout& layout) {
  const SampleSizes sizes = SizesOf(layout);
  const bool whole = sizes.longer == 0;
  return ProgramLength(model, layout, whole ? layout.micro_batches() : sizes.shorter + sizes.longer,
                       whole ? 1 : 2);
}

uint32_t ScheduleKey(const v1::Layout& layout) {
  uint32_t schedule = 0;
  for (const std::string_view name :
       {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "breadth_first"}) {
    if (layout.schedule() == name) break;
    ++schedule;
  }
  return schedule << 16 | layout.interleave();
}

}  // namespace

Comparison::Comparison(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                       Search search)
    : spec_(spec),
      budget_(budget),
      search_(search),
      layers_(model.config.layers),
      limits_(ArenaLimitsOf(spec, budget)),
      memory_(EstimateModel(spec, model)),
      time_(EstimateModel(spec, model), budget.profile) {}

void Comparison::Add(v1::Layout layout) {
  const v1::LayoutSpec& pinned = spec_.layout();
  const bool open =
      search_ != Search::kPlain && pinned.recompute().empty() && pinned.recompute_layers().empty();
  if (!open) {
    Compare(std::move(layout));
    return;
  }
  // Each kind that does not fit gives way, in some layers, to the next.
  std::optional<Proposal> too_large;
  for (const std::string_view recompute : {"none", "selective", "block", "sqrt"}) {
    layout.set_recompute(std::string(recompute));
    Proposal one = Compare(layout);
    const bool fits = Within(one.memory, limits_);
    if (fits && too_large.has_value()) AddMixed(*too_large, one);
    too_large.reset();
    if (!fits) too_large = std::move(one);
    if (fits && recompute == "block") break;
  }
}

void Comparison::MoveAndTile(bool of_all_splits) {
  if (search_ == Search::kTiers) AddMoved(of_all_splits);
  if (search_ != Search::kPlain) AddTiled();
}

Proposals Comparison::Take() {
  MoveAndTile(/*of_all_splits=*/true);
  const bool plain = search_ == Search::kPlain;
  Proposals proposals = {.best = Smaller(), .compared = compared_};
  if (!plain) proposals.plainer = Plainer();
  for (Proposal& one : Away()) proposals.plainer.push_back(std::move(one));
  const size_t left = kProposedMax - std::min(kProposedMax / 2, proposals.best.size());
  struct OfKind {
    std::vector<Proposal> within, beyond;
  };
  std::map<LayoutKind, OfKind> kinds;
  const std::set<LayoutKind> short_fits = KindsThatFitShort();
  const auto add = [&](std::vector<Proposal>* alike, std::vector<Proposal> OfKind::*part) {
    for (Proposal& one : *alike) {
      const LayoutKind kind = LayoutKindOf(one.layout);
      if (short_fits.contains(kind) && !IsShort(one.layout)) continue;
      (kinds[kind].*part).push_back(std::move(one));
    }
  };
  for (auto& [key, family] : families_) {
    add(&family.within, &OfKind::within);
    add(&family.beyond, &OfKind::beyond);
  }
  std::vector<Proposal> fastest;
  for (auto& [kind, all] : kinds) {
    // What does not fit is faster as a rule, and must not leave out all that does.
    const size_t most = plain ? SIZE_MAX : kind == LayoutKind::kOnDevice ? left / 2 : left / 4;
    KeepFastest(most - std::min(most / kBeyondParts, all.beyond.size()), &all.within);
    KeepFastest(most - all.within.size(), &all.beyond);
    for (std::vector<Proposal>* part : {&all.within, &all.beyond}) {
      std::move(part->begin(), part->end(), std::back_inserter(fastest));
    }
  }
  const size_t smaller = proposals.best.size();
  for (Proposal& one : fastest) {
    const auto same = [&](const Proposal& other) {
      return other.seconds == one.seconds && other.memory.total() == one.memory.total();
    };
    const auto end = proposals.best.begin() + static_cast<std::ptrdiff_t>(smaller);
    if (std::none_of(proposals.best.begin(), end, same)) proposals.best.push_back(std::move(one));
  }
  // Where all take long to compile, what shows by how much they do not fit.
  const bool all_long =
      std::none_of(proposals.best.begin(), proposals.best.end(),
                   [this](const Proposal& one) { return IsSoonCompiled(one.layout); });
  if (all_long && smallest_shown_.has_value()) proposals.best.push_back(*smallest_shown_);
  std::stable_sort(proposals.best.begin(), proposals.best.end(), Faster);
  return proposals;
}

bool Comparison::IsShort(const v1::Layout& layout) const {
  return LayerPasses(layout, layers_) <= kShortLayerPasses;
}

// Tiles lengthen a step more than passes do.
bool Comparison::IsSoonCompiled(const v1::Layout& layout) const {
  return LayerPasses(layout, layers_) <= kShownLayerPasses &&
         SampledLength(memory_.model(), layout) <= kShownLength;
}

std::set<LayoutKind> Comparison::KindsThatFitShort() const {
  std::set<LayoutKind> kinds;
  for (const auto& [key, family] : families_) {
    for (const Proposal& one : family.within) {
      if (IsShort(one.layout)) kinds.insert(LayoutKindOf(one.layout));
    }
  }
  return kinds;
}

void Comparison::ChooseChunks(v1::Layout* layout) const {
  if (!layout->has_offload() || spec_.layout().chunk_bytes() > 0) return;
  const EstimateModel& model = memory_.model();
  const int64_t parameters =
      model.layer_parameters * layers_ + model.embedding_parameters + model.head_parameters;
  const int64_t share = kF32Bytes * parameters / layout->tensor_parallel() /
                        layout->pipeline_parallel() / ShardRanks(*layout);
  const int64_t passes = kChunkPasses * std::max<uint32_t>(1, layout->micro_batches());
  while (share / layout->chunk_bytes() * passes > kChunksOfStep &&
         layout->chunk_bytes() < kChunkBytesMax) {
    layout->set_chunk_bytes(2 * layout->chunk_bytes());
  }
  const int64_t host = limits_.host_bytes == 0 ? INT64_MAX : limits_.host_bytes;
  while (2 * layout->chunk_bytes() <=
             std::min(kComparedChunkMax, host / kStagingParts / kStagingChunks) &&
         SampledLength(model, *layout) > kComparedLength) {
    layout->set_chunk_bytes(2 * layout->chunk_bytes());
  }
}

Proposal Comparison::Compare(v1::Layout layout) {
  ++compared_;
  ChooseChunks(&layout);
  Proposal one = {.memory = memory_.Memory(layout)};
  const MemoryEstimate elsewhere = {.host_bytes = one.memory.host_bytes,
                                    .nvme_bytes = one.memory.nvme_bytes};
  const bool reachable = !Hopeless(elsewhere, spec_, budget_);
  const auto is_smaller = [&](const std::optional<Proposal>& than) {
    return !than.has_value() || (one.memory.total() < than->memory.total() && reachable);
  };
  const bool smallest = is_smaller(smallest_);
  const bool smallest_shown = is_smaller(smallest_shown_) && IsSoonCompiled(layout);
  const bool plain = search_ == Search::kPlain;
  const bool hopeless = !plain && Hopeless(one.memory, spec_, budget_);
  const bool within = Within(one.memory, limits_);
  const bool movable = search_ == Search::kTiers && !within;
  if (!hopeless || smallest || smallest_shown || movable) one.seconds = StepSeconds(layout);
  one.layout = std::move(layout);
  if (smallest) smallest_ = one;
  if (smallest_shown) smallest_shown_ = one;
  if (spec_.layout().tile_bytes() < 0 && Tileable(one.layout) &&
      (!tileable_.has_value() || one.memory.total() < tileable_->memory.total())) {
    tileable_ = one;
  }
  if (movable) KeepMovable(one);
  if (!hopeless) Keep(one, within);
  return one;
}

double Comparison::StepSeconds(const v1::Layout& layout) {
  const std::array<uint32_t, 4> key = {layout.tensor_parallel(), layout.context_parallel(),
                                       layout.micro_batch(), layout.sequence_parallel()};
  const auto [pass, is_new] = passes_.try_emplace(key);
  if (is_new) pass->second = time_.TimeOfPass(layout);
  return time_.StepSeconds(layout, pass->second);
}

void Comparison::Keep(const Proposal& one, bool within) {
  const v1::Layout& layout = one.layout;
  Family& family = families_[{layout.tensor_parallel(), layout.pipeline_parallel(),
                              layout.context_parallel(), layout.zero_stage(), layout.micro_batch(),
                              ScheduleKey(layout), ClassesAway(layout.offload())}];
  const size_t alike = search_ == Search::kPlain ? SIZE_MAX : kAlikeMax;
  within ? Insert(one, alike, &family.within) : Insert(one, kBeyondMax, &family.beyond);
  if (one.to_fit) return;
  const double bytes = std::max(1.0, static_cast<double>(one.memory.total()));
  const int size = static_cast<int>(std::floor(std::log(bytes) / -std::log(kSmaller)));
  const auto [fastest, is_new] = by_size_.try_emplace(size, one);
  if (!is_new && Faster(one, fastest->second)) fastest->second = one;
}

Comparison::SplitKey Comparison::SplitOf(const v1::Layout& layout) {
  return {layout.pipeline_parallel(), layout.context_parallel(), layout.tensor_parallel(),
          layout.zero_stage()};
}

void Comparison::KeepMovable(const Proposal& one) {
  const SplitKey split = SplitOf(one.layout);
  const auto [fastest, is_new] = movable_of_.try_emplace({split, one.layout.recompute()}, one);
  if (!is_new && Faster(one, fastest->second)) fastest->second = one;
  const char* which = one.layout.micro_batches() > 1 ? kSmallest : kSmallestOfOne;
  const auto [smallest, is_first] = movable_of_.try_emplace({split, which}, one);
  if (!is_first && one.memory.total() < smallest->second.memory.total()) smallest->second = one;
  if (one.seconds >= movable_max_) return;
  movable_.push_back(one);
  if (movable_.size() < 2 * kMovedMax) return;
  KeepFastest(kMovedMax, &movable_);
  movable_max_ = movable_.back().seconds;
}

// Just as much of `next`, which fits, as `large` needs to fit too.
void Comparison::AddMixed(const Proposal& large, const Proposal& next) {
  if (next.seconds == 0 || large.seconds == 0 || large.layout.has_offload()) return;
  ++compared_;
  const double part = static_cast<double>(large.memory.total() - limits_.device_bytes) /
                      static_cast<double>(large.memory.total() - next.memory.total());
  Proposal mixed = next;
  mixed.seconds = large.seconds + part * (next.seconds - large.seconds);
  mixed.to_fit = true;
  Keep(mixed, /*within=*/true);
}

std::vector<Proposal> Comparison::Smaller() const {
  std::vector<Proposal> all;
  for (const auto& [size, one] : by_size_) all.push_back(one);
  if (smallest_.has_value()) all.push_back(*smallest_);
  std::stable_sort(all.begin(), all.end(), Faster);
  std::vector<Proposal> front;
  for (Proposal& one : all) {
    const auto bytes = static_cast<double>(one.memory.total());
    const bool last = one.memory.total() == smallest_->memory.total();
    const double enough = front.empty() ? 1e300 : static_cast<double>(front.back().memory.total());
    if (bytes <= kSmaller * enough || (last && bytes < enough)) front.push_back(std::move(one));
  }
  return front;
}

// The fastest, and those of each split: the fastest of all are much alike.
std::vector<Proposal> Comparison::TakeMovable(bool of_all_splits) {
  KeepFastest(kMovedMax, &movable_);
  if (!of_all_splits) return std::move(movable_);
  std::vector<Proposal> of_splits;
  for (auto& [key, one] : movable_of_) of_splits.push_back(std::move(one));
  KeepFastest(kMovedMax, &of_splits);
  std::vector<Proposal> movable = std::move(movable_);
  std::move(of_splits.begin(), of_splits.end(), std::back_inserter(movable));
  return movable;
}

// What does not fit, with as much as is needed elsewhere.
void Comparison::AddMoved(bool of_all_splits) {
  std::vector<OffloadWay> ways(std::begin(kHostWays), std::end(kHostWays));
  if (spec_.resources().nvme().paths_size() > 0) {
    ways.insert(ways.end(), std::begin(kNvmeWays), std::end(kNvmeWays));
  }
  std::vector<Proposal> smallest_of_splits;
  for (const auto& [key, one] : movable_of_) {
    if (!of_all_splits) break;
    if (key.second == kSmallest || key.second == kSmallestOfOne) smallest_of_splits.push_back(one);
  }
  KeepSmallest(kAllMovedMax, &smallest_of_splits);
  for (const Proposal& one : TakeMovable(of_all_splits)) {
    for (const OffloadWay way : ways) {
      ++compared_;
      v1::Layout farthest = one.layout;
      *farthest.mutable_offload() = WithPinned(spec_.layout().offload(), FarthestOffload(way));
      farthest = Completed(std::move(farthest));
      ChooseChunks(&farthest);
      auto moved = WithOffload(memory_, farthest, spec_.layout().offload(), way, limits_);
      if (!moved.has_value()) continue;
      Proposal proposal = {
          .seconds = StepSeconds(*moved), .memory = memory_.Memory(*moved), .way = way};
      proposal.layout = *std::move(moved);
      Keep(proposal, /*within=*/true);
    }
  }
  AddAllMoved(std::move(smallest_of_splits));
}

// The fewer kinds of splits, the plainer. Of each split the fastest within the limits, then the
// one with the most room, then, since closed forms may be too high, what is nearest to them.
std::vector<Proposal> Comparison::Plainer() const {
  using Best = std::map<SplitKey, Proposal>;
  std::array<Best, 3> ways;
  const auto take = [](const Proposal& one, auto better, Best* best) {
    const auto [it, is_new] = best->try_emplace(SplitOf(one.layout), one);
    if (!is_new && better(one, it->second)) it->second = one;
  };
  const auto smaller = [](const Proposal& a, const Proposal& b) {
    return a.memory.total() < b.memory.total();
  };
  for (const auto& [key, family] : families_) {
    for (const Proposal& one : family.within) {
      take(one, Faster, &ways[0]);
      if (!one.to_fit) take(one, smaller, &ways[1]);
    }
    for (const Proposal& one : family.beyond) take(one, smaller, &ways[2]);
  }
  std::vector<Proposal> plainer;
  for (Best& best : ways) {
    const auto begin = static_cast<std::ptrdiff_t>(plainer.size());
    for (auto& [split, one] : best) plainer.push_back(std::move(one));
    const auto key = [](const Proposal& one) {
      const v1::Layout& layout = one.layout;
      return std::tuple(layout.pipeline_parallel() > 1, layout.context_parallel() > 1, one.seconds);
    };
    std::stable_sort(plainer.begin() + begin, plainer.end(),
                     [&](const Proposal& a, const Proposal& b) { return key(a) < key(b); });
  }
  return plainer;
}

// The smallest of each split with everything away, with blocks computed again and with nothing: if
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
      away_.push_back(Compare(moved.layout));
      for (const char* recompute : {"block", "none"}) {
        if (!open || moved.layout.recompute() == recompute) continue;
        v1::Layout other = moved.layout;
        other.set_recompute(recompute);
        away_.push_back(Compare(std::move(other)));
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
    if (!Hopeless(away_[i].memory, spec_, budget_)) order.emplace_back(part(away_[i]), i);
  }
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kAwayMax));
  std::vector<Proposal> away;
  for (const auto& [of_limits, i] : order) away.push_back(away_[i]);
  return away;
}

// Matrices may be tiled when weights are brought for each use; those that may move will be.
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
      layouts.push_back(Completed(std::move(moved)));
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
