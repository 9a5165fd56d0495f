// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "coordinator/hardware/catalogue.h"
#include "coordinator/layout/parameter_groups.h"
#include "coordinator/layout/precision.h"
#include "coordinator/planner/degrees.h"
#include "coordinator/planner/estimate_length.h"
#include "coordinator/prepare/search_choice.h"
#include "coordinator/prepare/search_trial.h"

namespace terrace {
namespace {

// Layouts of a kind that fit before the fastest is chosen.
constexpr int kFittingMax = 4;
constexpr double kAnySeconds = 1e300;
// Degrees of tensor parallelism beyond a node that are tried where nothing fits, and for each so
// many instructions.
constexpr int kAcrossNodesMax = 2;
constexpr int64_t kAcrossInstructionsMax = 180'000;

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

// Borrows what it is made with. Used by one thread, once.
class LayoutSearch {
 public:
  LayoutSearch(const v1::JobSpec& spec, const Model& model, const Budget& budget,
               const SearchOptions& options, SearchCost* cost)
      : spec_(spec),
        model_(model),
        budget_(budget),
        options_(options),
        cost_(*cost),
        trial_(spec, model, budget,
               {.fitting_max = options.first_fit ? 1 : kFittingMax,
                .instructions_max = options.instructions_max,
                .in_time = options.in_time}) {}

  absl::StatusOr<Searched> Run() {
    const absl::Status tried = TryAll();
    cost_.instructions += trial_.instructions();
    RETURN_IF_ERROR(tried);
    found_.all_tried = trial_.all_tried();
    std::vector<TriedLayout> taken = trial_.Take();
    if (taken.empty()) {
      // What was spent says nothing of what would fit.
      if (options_.first_fit && !found_.all_tried) return std::move(found_);
      if (!trial_.refusal().ok()) return trial_.refusal();
      return absl::ResourceExhaustedError("no layout could be adjusted to the memory there is");
    }
    ASSIGN_OR_RETURN(found_.evaluated, Choose(std::move(taken)));
    const Evaluated& front = found_.evaluated.front();
    if (front.fits) {
      found_.others = SmallerOnes(wide_.best, front);
    } else {
      found_.smaller = MuchSmaller(wide_.best, front);
    }
    return std::move(found_);
  }

 private:
  absl::Status TryAll() {
    // A batch that all ranks cannot divide may be divided by fewer.
    const absl::StatusOr<Proposals> plain = Propose(spec_, model_, budget_, Search::kPlain);
    double seconds_max = kAnySeconds;
    if (plain.ok()) {
      Count(*plain);
      RETURN_IF_ERROR(
          trial_.Try(All(plain->best), LayoutKind::kPlain, /*last=*/false, seconds_max));
      if (trial_.fits()) seconds_max = WorthIt(trial_.fastest_estimate());
    }
    if (options_.first_fit && trial_.fits()) return absl::OkStatus();
    trial_.Forget();
    const auto search = OffersTiers(spec_) ? Search::kTiers : Search::kAll;
    absl::StatusOr<Proposals> all = Propose(spec_, model_, budget_, search);
    if (!all.ok()) return plain.ok() ? all.status() : plain.status();
    wide_ = *std::move(all);
    Count(wide_);
    RETURN_IF_ERROR(TryKinds(seconds_max));
    if (options_.first_fit && (trial_.fits() || !options_.last_resorts)) return absl::OkStatus();
    if (!trial_.fits()) {
      RETURN_IF_ERROR(TryNearly());
      if (!trial_.fits())
        RETURN_IF_ERROR(trial_.TryInTurn(All(wide_.plainer), kPlainerInstructionsMax));
      RETURN_IF_ERROR(TryAcrossNodes(search));
    }
    if (options_.first_fit) return absl::OkStatus();
    if (trial_.fits() && OffersTiers(spec_)) {
      RETURN_IF_ERROR(trial_.TryPromising(OfKind(wide_.plainer, LayoutKind::kOnTiers),
                                          kPromisingInstructionsMax));
    }
    return trial_.TryAny(All(wide_.best));
  }

  // The closed form is a few percent too high: where the memory is nearly full it may leave nothing
  // to choose, neither what is recomputed nor how much is on another tier.
  absl::Status TryNearly() {
    int64_t compared = 0;
    const auto nearly = ProposeNearly(spec_, model_, budget_, &compared);
    found_.candidates += compared;
    cost_.compared += compared;
    RETURN_IF_ERROR(nearly.status());
    return trial_.TryInTurn(All(*nearly), kNearlyInstructionsMax);
  }

  // Tensor parallelism between nodes is slow, so that it is not compared with others; but it makes
  // each rank's part of a layer smaller, as nothing else does.
  absl::Status TryAcrossNodes(Search search) {
    if (spec_.layout().tp() > 0) return absl::OkStatus();
    v1::JobSpec across = spec_;
    int degrees = 0;
    for (const int64_t tp : Divisors(budget_.ranks)) {
      if (tp <= budget_.ranks / budget_.nodes || trial_.fits()) continue;
      if (++degrees > kAcrossNodesMax) break;
      across.mutable_layout()->set_tp(static_cast<uint32_t>(tp));
      const absl::StatusOr<Proposals> proposals = Propose(across, model_, budget_, search);
      if (!proposals.ok()) continue;  // heads, say, that so many do not divide
      Count(*proposals);
      RETURN_IF_ERROR(trial_.TryInTurn(All(proposals->plainer), kAcrossInstructionsMax));
    }
    return absl::OkStatus();
  }

  void Count(const Proposals& proposals) {
    found_.candidates += proposals.compared;
    cost_.compared += proposals.compared;
  }

  // Each kind only where it may be worth more than those before it.
  absl::Status TryKinds(double seconds_max) {
    LayoutKind last = LayoutKind::kSharded;
    for (const Proposal& one : wide_.best) last = std::max(last, LayoutKindOf(one.layout));
    for (const LayoutKind kind :
         {LayoutKind::kSharded, LayoutKind::kOnDevice, LayoutKind::kOnTiers}) {
      const std::vector<const Proposal*> of_kind = OfKind(wide_.best, kind);
      if (of_kind.empty()) continue;
      RETURN_IF_ERROR(trial_.Try(of_kind, kind, kind == last, seconds_max));
      if (trial_.fits()) seconds_max = std::min(seconds_max, WorthIt(trial_.fastest_estimate()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Evaluated>> Choose(std::vector<TriedLayout> tried) const {
    const std::optional<size_t> best = BestOf(tried);
    const size_t index = best ? *best : NearestToFit(spec_, budget_, tried);
    Evaluated& one = tried[index].evaluated;
    if (best) {
      RETURN_IF_ERROR(CheckAdmitted(budget_, LimitsOf(spec_), one.layout, &one.programs));
      for (TriedLayout& other : tried) RETURN_IF_ERROR(Simulated(&other.evaluated));
    } else if (!options_.first_fit) {  // of a search for what fits nobody reads what does not
      RETURN_IF_ERROR(Simulated(&one));
    }
    return InOrder(index, std::move(tried));
  }

  absl::Status Simulated(Evaluated* one) const {
    return one->simulation.stages.empty() ? SimulateStep(budget_.profile, one) : absl::OkStatus();
  }

  // The smallest of the long ones, if it is; what was compiled is nearer than that to its closed
  // form.
  std::optional<Proposal> MuchSmaller(const std::vector<Proposal>& proposals,
                                      const Evaluated& nearest) const {
    constexpr double kMuch = 0.85;
    const Proposal* smallest = nullptr;
    for (const Proposal& one : proposals) {
      if (one.to_fit || InfeasibleElsewhere(one.memory, one.layout, spec_)) continue;
      if (LayerPasses(one.layout, model_.config.layers) <= kShownLayerPasses) continue;
      if (smallest == nullptr || one.memory.total() < smallest->memory.total()) smallest = &one;
    }
    if (smallest == nullptr) return std::nullopt;
    // What would fit was left out for what it costs, and is named by the changes.
    const int64_t bytes = smallest->memory.total() + nearest.programs[0].external_bytes();
    const bool much =
        static_cast<double>(bytes) < kMuch * static_cast<double>(nearest.device_bytes) &&
        bytes > budget_.device_memory_bytes;
    return much ? std::optional(*smallest) : std::nullopt;
  }

  const v1::JobSpec& spec_;
  const Model& model_;
  const Budget& budget_;
  const SearchOptions& options_;
  SearchCost& cost_;
  Trial trial_;
  Proposals wide_;
  Searched found_;
};

// A GPU that the catalogue lacks is not judged here: the worker knows what it can do.
absl::Status CheckPrecision(const v1::JobSpec& spec, int64_t layers, const Budget& budget) {
  const v1::TrainSpec& train = spec.train();
  const std::vector<std::string> problems = PrecisionProblems(train, layers);
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  const bool some = std::any_of(train.precision_rules().begin(), train.precision_rules().end(),
                                [](const auto& rule) { return rule.precision() == "fp8"; });
  if ((train.precision() != "fp8" && !some) || budget.device != "cuda") return absl::OkStatus();
  const v1::HardwareProfile& profile = budget.profile;
  auto device = FindDevice(profile.name());
  if (!device.ok()) device = FindDriverDevice(profile.name(), profile.device_memory_bytes());
  if (!device.ok() || device->fp8_flops_per_second > 0) return absl::OkStatus();
  const char* const key = train.precision() == "fp8" ? "train.precision" : "train.precision.layers";
  return absl::InvalidArgumentError(
      absl::StrCat(key, ": got 'fp8', but ", profile.name(),
                   " has no units for 8-bit products (compute capability 8.9 or later has): set ",
                   key, " to bf16"));
}

}  // namespace

absl::StatusOr<Searched> SearchLayouts(const v1::JobSpec& spec, const Model& model,
                                       const Budget& given, const SearchOptions& options,
                                       SearchCost* cost) {
  RETURN_IF_ERROR(CheckPrecision(spec, model.config.layers, given));
  const auto problems = ParameterGroupProblems(spec.train().optimizer(), model);
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  Budget budget = given;
  budget.external_bytes = ExternalBytes(given);
  SearchCost own;
  if (cost == nullptr) cost = &own;
  return LayoutSearch(spec, model, budget, options, cost).Run();
}

}  // namespace terrace
