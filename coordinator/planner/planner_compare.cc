// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planner_compare.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "coordinator/layout/rules.h"
#include "coordinator/planner/closed_form_error.h"
#include "coordinator/planner/estimate_length.h"

namespace terrace {
namespace {

// What is proposed at most, half of it of the kind that has the most layouts; what is proposed for
// its memory counts.
constexpr size_t kProposedMax = 64;
// Of layouts that are alike: those within the limits, and those beyond, which say what more memory
// would be worth.
constexpr size_t kAlikeMax = 2, kBeyondMax = 1;
// The largest share of a kind's proposals that are beyond the limits, where others are within.
constexpr double kBeyondShare = 0.25;
// A proposal for its memory needs this part of the last one's at most.
constexpr double kSmaller = 0.9;
// Of what is offloaded a micro-batch, or a run of them, moves weights there twice and gradients
// there and back. Beyond so many chunks in a step a stage's program is too long to compile or
// check.
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

// By the least that closed forms leave possible.
bool MayBeSmaller(const Proposal& a, const Proposal& b) {
  const auto least = [](const Proposal& one) {
    return static_cast<double>(one.memory.total()) / BoundsOf(one.layout).device;
  };
  return least(a) < least(b);
}

// Into those sorted by time; of equals the first stays ahead.
void Insert(const Proposal& one, size_t most, std::vector<Proposal>* proposals) {
  if (proposals->size() == most && !Faster(one, proposals->back())) return;
  proposals->insert(std::upper_bound(proposals->begin(), proposals->end(), one, Faster), one);
  if (proposals->size() > most) proposals->pop_back();
}

ArenaLimits ArenaLimitsOf(const v1::JobSpec& spec, const Budget& budget) {
  const TierLimits limits = LimitsOf(spec);
  return {.device_bytes = ArenaBytesOf(budget),
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

void KeepFastest(size_t most, std::vector<Proposal>* proposals) {
  std::stable_sort(proposals->begin(), proposals->end(), Faster);
  if (proposals->size() > most) proposals->resize(most);
}

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
    KeepFastest(most - std::min(static_cast<size_t>(kBeyondShare * static_cast<double>(most)),
                                all.beyond.size()),
                &all.within);
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
         ProgramLength(memory_.model(), layout) <= kShownLength;
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
  const int64_t passes = kChunkPasses * std::max<int64_t>(1, RunsOf(*layout));
  while (share / layout->chunk_bytes() * passes > kChunksOfStep &&
         layout->chunk_bytes() < kChunkBytesMax) {
    layout->set_chunk_bytes(2 * layout->chunk_bytes());
  }
  const int64_t host = limits_.host_bytes == 0 ? INT64_MAX : limits_.host_bytes;
  while (2 * layout->chunk_bytes() <=
             std::min(kComparedChunkMax, host / kStagingParts / kStagingChunks) &&
         ProgramLength(model, *layout) > kComparedLength) {
    layout->set_chunk_bytes(2 * layout->chunk_bytes());
  }
}

Proposal Comparison::Compare(v1::Layout layout) {
  ++compared_;
  ChooseChunks(&layout);
  Proposal one = {.memory = memory_.Memory(layout)};
  const bool reachable = !InfeasibleElsewhere(one.memory, layout, spec_);
  const auto is_smaller = [&](const std::optional<Proposal>& than) {
    return !than.has_value() || (one.memory.total() < than->memory.total() && reachable);
  };
  const bool smallest = is_smaller(smallest_);
  const bool smallest_shown = is_smaller(smallest_shown_) && IsSoonCompiled(layout);
  const bool plain = search_ == Search::kPlain;
  const bool infeasible = !plain && Infeasible(one.memory, layout, spec_, budget_);
  const bool within = Within(one.memory, limits_);
  const bool movable = search_ == Search::kTiers && !within;
  if (!infeasible || smallest || smallest_shown || movable) one.seconds = StepSeconds(layout);
  one.layout = std::move(layout);
  if (smallest) smallest_ = one;
  if (smallest_shown) smallest_shown_ = one;
  if (spec_.layout().tile_bytes() < 0 && Tileable(one.layout) &&
      (!tileable_.has_value() || one.memory.total() < tileable_->memory.total())) {
    tileable_ = one;
  }
  if (movable) KeepMovable(one);
  if (!infeasible) Keep(one, within);
  return one;
}

double Comparison::StepSeconds(const v1::Layout& layout) {
  const std::array<uint32_t, 4> key = {layout.tensor_parallel(), layout.context_parallel(),
                                       layout.micro_batch(), layout.sequence_parallel()};
  const auto [pass, is_new] = passes_.try_emplace(key);
  if (is_new) pass->second = time_.TimeOfPass(layout);
  return time_.StepSeconds(layout, pass->second);
}

bool Comparison::IsFar(const Proposal& one) const {
  return limits_.device_bytes > 0 &&
         static_cast<double>(one.memory.total() - kClosedFormSlackBytes) >
             kClosedFormLikely * static_cast<double>(limits_.device_bytes);
}

void Comparison::Keep(const Proposal& one, bool within) {
  const v1::Layout& layout = one.layout;
  if (!within && IsFar(one)) {
    const auto [smallest, is_first] = farther_.try_emplace(SplitOf(layout), one);
    if (!is_first && MayBeSmaller(one, smallest->second)) smallest->second = one;
    return;
  }
  Family& family =
      families_[{layout.tensor_parallel(), layout.pipeline_parallel(), layout.context_parallel(),
                 layout.zero_stage() << 1 | (RoundsWeights(layout) ? 1 : 0), layout.micro_batch(),
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

// The fewer kinds of splits, the plainer. Of each split the fastest within the limits, then the
// one with the most room, then, since closed forms may be too high, what is nearest to them and
// what is farther.
std::vector<Proposal> Comparison::Plainer() const {
  using Best = std::map<SplitKey, Proposal>;
  std::array<Best, 4> ways;
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
    for (const Proposal& one : family.beyond) take(one, MayBeSmaller, &ways[2]);
  }
  ways[3] = farther_;
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

}  // namespace terrace
