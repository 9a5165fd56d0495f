// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/fallback.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/layout/rules.h"
#include "coordinator/planner/degrees.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/offload_report.h"
#include "coordinator/prepare/plan_report.h"
#include "coordinator/prepare/search.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// ---- fallbacks ---------------------------------------------------------------------------------

void AddMicroBatches(const v1::JobSpec& spec, v1::Layout* layout,
                     std::vector<Fallback>* fallbacks) {
  if (spec.layout().micro_batch() > 0) return;
  std::vector<int64_t> divisors = Divisors(layout->micro_batch());
  std::reverse(divisors.begin(), divisors.end());
  const uint32_t sequences = layout->micro_batch() * layout->micro_batches();
  for (const int64_t micro_batch : divisors) {
    const bool parts_pairs = spec.train().has_preference() && micro_batch % 2 != 0;
    if (micro_batch >= layout->micro_batch() || parts_pairs) continue;
    layout->set_micro_batch(static_cast<uint32_t>(micro_batch));
    layout->set_micro_batches(sequences / layout->micro_batch());
    fallbacks->push_back({"micro_batch", *layout});
  }
}

// How little of the activations is kept; groups of several layers keep more than one block does.
int RecomputeDepth(const v1::Layout& layout) {
  if (layout.recompute_layers_size() > 0) return 2;
  if (layout.recompute() == "block") return 3;
  if (layout.recompute() == "selective") return 1;
  return layout.recompute().empty() || layout.recompute() == "none" ? 0 : 2;
}

void AddRecompute(const v1::JobSpec& spec, v1::Layout* layout, std::vector<Fallback>* fallbacks) {
  if (!spec.layout().recompute().empty() || spec.layout().recompute_layers_size() > 0) return;
  for (const char* recompute : {"selective", "block"}) {
    v1::Layout next = *layout;
    next.clear_recompute_layers();
    next.clear_recompute_every();
    next.set_recompute(recompute);
    if (RecomputeDepth(next) <= RecomputeDepth(*layout)) continue;
    *layout = std::move(next);
    fallbacks->push_back({"recompute", *layout});
  }
}

// `proposed` where nothing is pinned and nothing rests farther away already; false: no change.
bool Offloaded(const v1::Offload& pinned, const v1::Offload& proposed, v1::Offload* offload) {
  bool changed = false;
  const auto take = [&changed](bool is_pinned, const v1::TierShares& to, v1::TierShares* shares) {
    if (is_pinned || FarthestTier(to) <= FarthestTier(*shares)) return;
    *shares = to;
    changed = true;
  };
  take(pinned.has_parameter(), proposed.parameter(), offload->mutable_parameter());
  take(pinned.has_gradient(), proposed.gradient(), offload->mutable_gradient());
  take(pinned.has_optimizer(), proposed.optimizer(), offload->mutable_optimizer());
  return changed;
}

void AddOffloads(const v1::JobSpec& spec, v1::Layout* layout, std::vector<Fallback>* fallbacks) {
  if (!OffersTiers(spec)) return;
  for (const v1::Offload& proposed : Offloads(spec.resources().nvme().paths_size() > 0)) {
    v1::Offload offload = layout->offload();
    if (!Offloaded(spec.layout().offload(), proposed, &offload)) continue;
    *layout->mutable_offload() = offload;
    *layout = Completed(*layout);
    fallbacks->push_back({proposed.optimizer().nvme() > 0 ? "nvme" : "host", *layout});
  }
}

// ---- limits -----------------------------------------------------------------------------------

int64_t ArenaBytes(const v1::Plan& plan, v1::Tier tier) {
  int64_t bytes = 0;
  for (const v1::StageMemory& stage : plan.memory()) {
    const v1::Tier of = stage.tier() == v1::TIER_UNSPECIFIED ? v1::DEVICE : stage.tier();
    if (of == tier) bytes = std::max(bytes, stage.arena_bytes());
  }
  return bytes;
}

// What the layout that ran out tells of the limit. When the device's memory was not exceeded, the
// limit is one that no plan knows (a control group, ulimit, other processes): what the rank held
// then was too much.
class Limit {
 public:
  Limit(const v1::JobSpec& spec, const Budget& budget, const v1::Plan& plan)
      : spec_(spec), budget_(budget) {
    const int64_t seen = SeenFrom(ExternalBytes(budget));
    const int64_t device = ArenaBytes(plan, v1::DEVICE) + seen;
    if (budget.device_memory_bytes > 0 && device > budget.device_memory_bytes) return;
    held_bytes_ = device + ArenaBytes(plan, v1::HOST);
  }

  bool Fits(const Evaluated& one) const {
    if (!one.fits) return false;
    const int64_t host = spec_.resources().device() == "cuda" ? 0 : one.host_bytes;
    return held_bytes_ == 0 || one.device_bytes + host <= held_bytes_;
  }
  std::string Text() const {
    if (held_bytes_ == 0) {
      return absl::StrCat("resources.device_memory is ", FormatBytes(budget_.device_memory_bytes));
    }
    return absl::StrCat("no limit in the plan was reached, ", FormatBytes(held_bytes_),
                        " of memory was too much for the node, its control group or its ulimit");
  }
  std::string More(const Evaluated& least) const {
    if (held_bytes_ > 0) return "give the worker more memory";
    if (least.device_bytes <= budget_.device_memory_bytes) {
      return absl::StrCat(
          "raise what resources offers beside the device: ", LayoutText(least.layout), " needs ",
          absl::StrJoin(Excesses(spec_, budget_, least), " and "));
    }
    const int64_t mib = (least.device_bytes + kMiB - 1) / kMiB;
    return absl::StrCat("raise resources.device_memory to at least ", mib, " MiB");
  }

 private:
  const v1::JobSpec& spec_;
  const Budget& budget_;
  int64_t held_bytes_ = 0;
};

// ---- the first that fits ----------------------------------------------------------------------

class FallbackSearch {
 public:
  FallbackSearch(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                 const v1::Plan& plan)
      : spec_(spec), model_(model), budget_(budget), plan_(plan), limit_(spec, budget, plan) {}

  struct Step {
    Fallback fallback;
    Evaluated evaluated;
  };
  // The first fallback that fits, with the keys pinned that `pins` pins.
  absl::StatusOr<std::optional<Step>> First(const v1::JobSpec& pins) {
    for (Fallback& fallback : FallbacksFrom(pins, plan_.layout())) {
      if (!CheckLayout(fallback.layout, model_, spec_).ok()) continue;
      absl::StatusOr<Evaluated> one = Evaluate(spec_, model_, budget_, fallback.layout);
      if (absl::IsInvalidArgument(one.status())) continue;  // a later one may be compiled
      RETURN_IF_ERROR(one.status());
      if (limit_.Fits(*one)) return Step{std::move(fallback), *std::move(one)};
      if (!least_ || one->device_bytes < least_->device_bytes) least_ = *std::move(one);
    }
    return std::nullopt;
  }

  // What to say when none fits.
  absl::Status Refusal() {
    std::string text = absl::StrCat(
        "a rank needs ", FormatBytes(ExternalBytes(budget_)), " outside its arenas beside ",
        FormatBytes(ArenaBytes(plan_, v1::DEVICE)), " inside; ", limit_.Text(),
        "; nothing smaller fits below ", LayoutText(plan_.layout()), ": ");
    const std::optional<std::string> release = Release();
    if (release.has_value()) {
      return absl::ResourceExhaustedError(absl::StrCat(text, *release));
    }
    absl::StrAppend(&text, "find what grows in the process",
                    least_ ? absl::StrCat(", or ", limit_.More(*least_)) : "",
                    OffersTiers(spec_) ? "" : ", or offer resources.host_memory or resources.nvme");
    return absl::ResourceExhaustedError(text);
  }

 private:
  // "layout.micro_batch is pinned: layout.micro_batch 4 fits".
  std::optional<std::string> Release() {
    using Unpin = void (*)(v1::LayoutSpec*);
    constexpr Unpin kUnpins[] = {[](v1::LayoutSpec* pins) { pins->clear_micro_batch(); },
                                 [](v1::LayoutSpec* pins) {
                                   pins->clear_recompute();
                                   pins->clear_recompute_every();
                                   pins->clear_recompute_layers();
                                 },
                                 [](v1::LayoutSpec* pins) { pins->clear_offload(); }};
    v1::JobSpec pins = spec_;
    for (const Unpin unpin : kUnpins) {
      const std::string before = pins.layout().SerializeAsString();
      unpin(pins.mutable_layout());
      if (pins.layout().SerializeAsString() == before) continue;
      const auto step = First(pins);
      if (!step.ok() || !step->has_value()) continue;
      return absl::StrCat(
          "a pinned key is in the way; release it or set ",
          absl::StrJoin(Unpinned(spec_.layout(), (*step)->fallback.layout), " and "),
          ", which fits");
    }
    return std::nullopt;
  }

  const v1::JobSpec& spec_;
  const Model& model_;
  const Budget& budget_;
  const v1::Plan& plan_;
  const Limit limit_;
  std::optional<Evaluated> least_;
};

// "layout.micro_batch 4 instead of 8, layout.recompute block instead of none".
std::string ChangeText(const v1::Layout& from, const v1::Layout& to) {
  const std::vector<std::string> before = Differences(to, from), after = Differences(from, to);
  std::vector<std::string> changes;
  for (size_t i = 0; i < after.size(); ++i) {
    changes.push_back(absl::StrCat(after[i].starts_with("formats.") ? "" : "layout.", after[i],
                                   " instead of ", before[i].substr(before[i].find(' ') + 1)));
  }
  return absl::StrJoin(changes, ", ");
}

}  // namespace

std::vector<Fallback> FallbacksFrom(const v1::JobSpec& spec, const v1::Layout& layout) {
  std::vector<Fallback> fallbacks;
  v1::Layout lowest = layout;
  AddMicroBatches(spec, &lowest, &fallbacks);
  AddRecompute(spec, &lowest, &fallbacks);
  AddOffloads(spec, &lowest, &fallbacks);
  return fallbacks;
}

absl::StatusOr<ChosenFallback> FindFallback(const v1::JobSpec& spec, const Budget& given,
                                            const v1::Plan& plan) {
  Budget budget = given;
  if (budget.profile.f32_flops_per_second() <= 0) {
    budget.profile = CpuProfile(budget.threads_per_rank, budget.profile.name());
  }
  budget.profile = ProfileFor(spec, budget.profile);
  ASSIGN_OR_RETURN(const Model model, ReadModel(spec));
  FallbackSearch search(spec, model, budget, plan);
  ASSIGN_OR_RETURN(std::optional<FallbackSearch::Step> step, search.First(spec));
  if (!step.has_value()) return search.Refusal();
  ChosenFallback chosen;
  chosen.fallback = std::move(step->fallback.name);
  chosen.change = ChangeText(plan.layout(), step->fallback.layout);
  chosen.prepared.plan = ReportPlan(spec, model, budget, step->evaluated, {});
  RETURN_IF_ERROR(CheckDriveLife(spec, chosen.prepared.plan));
  chosen.prepared.programs = std::move(step->evaluated.programs);
  return chosen;
}

absl::StatusOr<Prepared> PrepareWithLearned(const v1::JobSpec& spec, const Budget& budget) {
  absl::StatusOr<Prepared> prepared = Prepare(spec, budget);
  if (budget.external_bytes == 0 || !absl::IsResourceExhausted(prepared.status())) return prepared;
  Budget without = budget;
  without.external_bytes = 0;
  return Prepare(spec, without);
}

}  // namespace terrace
