// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/prepare/search_choice.h"
#include "coordinator/prepare/search_sample.h"
#include "coordinator/prepare/search_trial.h"

namespace terrace {
namespace {

// Layouts of a kind that fit before the fastest is chosen.
constexpr int kFittingMax = 4;
constexpr double kAnySeconds = 1e300;

struct Found : Searched {
  bool fitted = false;  // something seemed to fit
};

std::vector<const Proposal*> OfKind(const std::vector<Proposal>& proposals, LayoutKind kind) {
  std::vector<const Proposal*> of_kind;
  for (const Proposal& one : proposals) {
    if (LayoutKindOf(one.layout) == kind) of_kind.push_back(&one);
  }
  return of_kind;
}

std::vector<const Proposal*> All(const std::vector<Proposal>& proposals) {
  std::vector<const Proposal*> all;
  for (const Proposal& one : proposals) all.push_back(&one);
  return all;
}

// Each kind only where it may be worth more than those before it.
absl::Status TryKinds(const std::vector<Proposal>& proposals, double seconds_max, Trial* trial) {
  LayoutKind last = LayoutKind::kSharded;
  for (const Proposal& one : proposals) last = std::max(last, LayoutKindOf(one.layout));
  for (const LayoutKind kind :
       {LayoutKind::kSharded, LayoutKind::kOnDevice, LayoutKind::kOnTiers}) {
    const std::vector<const Proposal*> of_kind = OfKind(proposals, kind);
    if (of_kind.empty()) continue;
    RETURN_IF_ERROR(trial->Try(of_kind, kind, kind == last, seconds_max));
    if (trial->fits()) seconds_max = std::min(seconds_max, WorthIt(trial->fastest_estimate()));
  }
  return absl::OkStatus();
}

// Where nothing fits. To say what is in the way it takes neither the last percents that a search of
// packings saves nor all of a very long step.
absl::StatusOr<Evaluated> Look(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                               Evaluated sample) {
  const bool is_short = LayerPassesOfStep(sample.layout, model.config.layers) <= kShortLayerPasses;
  if (is_short || NearlyFits(sample, budget)) {
    return Evaluate(spec, model, budget, v1::Layout(sample.layout));
  }
  return sample;
}

// The chosen one whole. A sample that fits may stand for a step that does not, by its packing: then
// the next best is.
absl::StatusOr<std::vector<Evaluated>> Choose(const v1::JobSpec& spec, const Model& model,
                                              const Budget& budget, std::vector<Tried> tried) {
  for (;;) {
    const std::optional<size_t> best = BestOf(tried);
    const size_t index = best ? *best : NearestToFit(spec, budget, tried);
    Evaluated& one = tried[index].evaluated;
    if (!best) {
      ASSIGN_OR_RETURN(one, Look(spec, model, budget, std::move(one)));
      return InOrder(index, std::move(tried));
    }
    ASSIGN_OR_RETURN(one, Evaluate(spec, model, budget, v1::Layout(one.layout)));
    if (one.fits) return InOrder(index, std::move(tried));
  }
}

absl::StatusOr<Found> SearchOnce(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                 Effort effort, bool sampled) {
  Trial trial(spec, model, budget, effort == Effort::kBest ? kFittingMax : 1, sampled);
  Found searched;
  // A batch that all ranks cannot divide may be divided by fewer.
  const absl::StatusOr<Proposals> plain = Propose(spec, model, budget, Search::kPlain);
  double seconds_max = kAnySeconds;
  if (plain.ok()) {
    RETURN_IF_ERROR(trial.Try(All(plain->best), LayoutKind::kPlain, /*last=*/false, kAnySeconds));
    searched.candidates = plain->compared;
    if (trial.fits()) seconds_max = WorthIt(trial.fastest_estimate());
  }
  Proposals wide;
  if (effort == Effort::kBest || !trial.fits()) {
    trial.Forget();
    const auto search = OffersTiers(spec) ? Search::kTiers : Search::kAll;
    absl::StatusOr<Proposals> all = Propose(spec, model, budget, search);
    if (!all.ok()) return plain.ok() ? all.status() : plain.status();
    wide = *std::move(all);
    searched.candidates += wide.compared;
    RETURN_IF_ERROR(TryKinds(wide.best, seconds_max, &trial));
  }
  searched.fitted = trial.fits();
  searched.instructions = trial.instructions();
  ASSIGN_OR_RETURN(std::vector<Tried> tried, trial.Take());
  ASSIGN_OR_RETURN(searched.evaluated, Choose(spec, model, budget, std::move(tried)));
  const Evaluated& front = searched.evaluated.front();
  if (front.fits) searched.others = SmallerOnes(wide.best, front);
  return searched;
}

}  // namespace

absl::StatusOr<Searched> SearchLayouts(const v1::JobSpec& spec, const Model& model,
                                       const Budget& given, Effort effort) {
  Budget budget = given;
  budget.external_bytes = ExternalBytes(given);
  ASSIGN_OR_RETURN(Found found, SearchOnce(spec, model, budget, effort, /*sampled=*/true));
  // What fits by its sample alone is decided by whole steps.
  if (found.fitted && !found.evaluated.front().fits) {
    ASSIGN_OR_RETURN(found, SearchOnce(spec, model, budget, effort, /*sampled=*/false));
  }
  return Searched(std::move(found));
}

}  // namespace terrace
