// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "coordinator/planner/estimate.h"
#include "coordinator/planner/fit.h"
#include "proto/caching_need.h"

namespace terrace {
namespace {

// Layouts that fit before the fastest is chosen, and those that may fail to before the smallest is
// tried.
constexpr int kFittingMax = 4;
constexpr int kMissesMax = 8;
// Compiled and simulated once this many instructions were, the search ends with what fits.
constexpr int64_t kInstructionsMax = 40'000;
// Without any that fits, only the smallest is tried from here on.
constexpr int64_t kMissedInstructionsMax = 200'000;
// Instructions of a step over all stages that are too many to compile for a comparison.
constexpr int64_t kLongProgram = 100'000;
// Of longer ones, closed forms that are nearer to the limit than this part are not tried: a miss is
// dear.
constexpr int64_t kDearProgram = 30'000;
constexpr double kMargin = 0.97;
// Times that a layout is adjusted to what compiling it showed.
constexpr int kCorrectionsMax = 2;
// Of layouts that differ by less in time, the one with the least memory.
constexpr double kSameTime = 1.02;
// Others are chosen instead of a plain layout from here on. Steps of milliseconds are mostly
// latencies, which predictions know least.
constexpr double kWorthIt = 1.1;
constexpr double kWorthItSeconds = 0.05;

int64_t Instructions(const Evaluated& evaluated) {
  int64_t count = 0;
  for (const v1::Program& program : evaluated.programs) {
    for (const v1::Sequence& sequence : program.sequences()) count += sequence.instructions_size();
  }
  return count;
}

// What another layout may take at most where a plain one takes `plain_seconds`.
double WorthIt(double plain_seconds) {
  return std::min(plain_seconds / kWorthIt, plain_seconds - kWorthItSeconds);
}

// About 35 a layer and micro-batch, in both directions.
int64_t InstructionsOf(const v1::Layout& layout, int64_t layers) {
  constexpr int64_t kOfLayer = 35;
  return kOfLayer * layers * layout.micro_batches();
}

int64_t StageBytes(const v1::Program& program) {
  return ReservedBytesNeeded(program, v1::DEVICE) + program.external_bytes();
}

class ExactSearch {
 public:
  ExactSearch(const v1::JobSpec& spec, const Model& model, const Budget& budget, Effort effort)
      : spec_(spec),
        model_(model),
        budget_(budget),
        fitting_max_(effort == Effort::kBest ? kFittingMax : 1),
        memory_(EstimateModel(spec, model)) {}

  // `proposals` are the fastest first; those slower than `seconds_max` are left out when one fits.
  // When none does, the smallest is tried where `last`.
  absl::Status Try(const std::vector<Proposal>& proposals, bool last, double seconds_max = 1e300) {
    const auto smaller = [this](const Proposal& a, const Proposal& b) {
      return std::pair(HopelessElsewhere(a), a.memory.total()) <
             std::pair(HopelessElsewhere(b), b.memory.total());
    };
    const auto smallest = std::min_element(proposals.begin(), proposals.end(), smaller);
    int misses = 0, fitting = 0;
    // Long programs only where no short one fits.
    for (const bool any_length : {false, true}) {
      for (auto one = proposals.begin(); one != proposals.end(); ++one) {
        if (fitting >= fitting_max_ || (fits() && instructions_ > kInstructionsMax)) break;
        if (fits() && (any_length || one->seconds > seconds_max)) break;
        if (!any_length && InstructionsOf(one->layout, model_.config.layers) > kLongProgram)
          continue;
        const bool hopeful =
            misses < kMissesMax && instructions_ < kMissedInstructionsMax && MayFit(*one);
        if (!hopeful && (!last || !any_length || one != smallest || fits())) continue;
        ASSIGN_OR_RETURN(const std::optional<bool> fit, TryOne(*one));
        if (fit.has_value()) *fit ? ++fitting : ++misses;
      }
    }
    return absl::OkStatus();
  }

  bool fits() const {
    return std::any_of(found_.begin(), found_.end(), [](const Evaluated& one) { return one.fits; });
  }

  // Layouts of another kind follow, of which those that failed say nothing.
  void ForgetMisses() { correction_ = 0; }

  size_t count() const { return found_.size(); }

  absl::StatusOr<std::vector<Evaluated>> Take() {
    if (found_.empty()) return refusal_;
    return std::move(found_);
  }

 private:
  // Whether it fits; nothing when it cannot be compiled or was before.
  absl::StatusOr<std::optional<bool>> TryOne(const Proposal& proposal) {
    v1::Layout layout = proposal.layout;
    std::vector<int64_t> targets(layout.pipeline_parallel(), Target(layout));
    if (proposal.to_fit) {
      std::optional<v1::Layout> fitted = WithRecompute(memory_, layout, targets);
      if (!fitted.has_value()) return std::optional<bool>();
      layout = *std::move(fitted);
    }
    for (int corrections = 0;; ++corrections) {
      if (Known(layout)) return std::optional<bool>();
      absl::StatusOr<Evaluated> one =
          Evaluate(spec_, model_, budget_, layout, Exactness::kForComparing);
      if (one.ok() && !one->fits && NearlyFits(*one))
        one = Evaluate(spec_, model_, budget_, layout);
      if (absl::IsInvalidArgument(one.status())) {  // another layout may be compiled
        if (refusal_.ok()) refusal_ = one.status();
        return std::optional<bool>();
      }
      RETURN_IF_ERROR(one.status());
      instructions_ += Instructions(*one);
      const bool fit = one->fits;
      std::optional<v1::Layout> next;
      if (!fit && corrections < kCorrectionsMax && instructions_ < kMissedInstructionsMax &&
          MayRecompute(layout)) {
        next = Corrected(*one, &targets);
      }
      if (!fit && !layout.has_offload()) Correct(*one);
      if (!next.has_value()) {
        found_.push_back(*std::move(one));
        return std::optional<bool>(fit);
      }
      layout = *std::move(next);
    }
  }

  // What a better packing may save.
  bool NearlyFits(const Evaluated& one) const {
    constexpr double kPackingSaves = 0.08;
    return static_cast<double>(one.device_bytes) * (1 - kPackingSaves) <=
           static_cast<double>(budget_.device_memory_bytes);
  }

  bool MayRecompute(const v1::Layout& layout) const {
    return spec_.layout().recompute().empty() && spec_.layout().recompute_layers().empty() &&
           layout.recompute() != "sqrt" && budget_.device_memory_bytes > 0;
  }

  // With less for each stage that is over its bytes; nothing when all is computed again already.
  std::optional<v1::Layout> Corrected(const Evaluated& one, std::vector<int64_t>* targets) const {
    for (size_t stage = 0; stage < one.programs.size(); ++stage) {
      const int64_t over = StageBytes(one.programs[stage]) - budget_.device_memory_bytes;
      const std::vector<MemoryEstimate> estimates = memory_.Stages(one.layout);
      if (over > 0) (*targets)[stage] = estimates[stage].total() - over;
    }
    std::optional<v1::Layout> next = WithRecompute(memory_, one.layout, *targets);
    if (next.has_value() && next->SerializeAsString() == one.layout.SerializeAsString()) {
      next.reset();
    }
    return next;
  }

  // Bytes of an arena by closed form that are worth compiling.
  int64_t Target(const v1::Layout& layout) const {
    if (InstructionsOf(layout, model_.config.layers) < kDearProgram) return ArenaMax();
    return static_cast<int64_t>(kMargin * static_cast<double>(ArenaMax()));
  }

  int64_t ArenaMax() const {
    return budget_.device_memory_bytes == 0 ? INT64_MAX
                                            : budget_.device_memory_bytes - ExternalBytes(budget_);
  }

  // Over the limits of the tiers other than the device.
  bool HopelessElsewhere(const Proposal& proposal) const {
    const MemoryEstimate elsewhere = {.host_bytes = proposal.memory.host_bytes,
                                      .nvme_bytes = proposal.memory.nvme_bytes};
    return Hopeless(elsewhere, spec_, budget_);
  }

  bool MayFit(const Proposal& proposal) const {
    if (HopelessElsewhere(proposal)) return false;
    if (budget_.device_memory_bytes == 0 || proposal.to_fit) return true;
    const double limit = static_cast<double>(budget_.device_memory_bytes);
    const double bytes = static_cast<double>(proposal.memory.total());
    if (InstructionsOf(proposal.layout, model_.config.layers) >= kDearProgram &&
        proposal.memory.total() > Target(proposal.layout)) {
      return false;
    }
    return correction_ == 0
               ? bytes <= kHopeless * limit
               : bytes * correction_ + static_cast<double>(ExternalBytes(budget_)) <= limit;
  }

  void Correct(const Evaluated& missed) {
    const auto arenas = static_cast<double>(missed.device_bytes - ExternalBytes(budget_));
    const auto estimate = static_cast<double>(memory_.Memory(missed.layout).total());
    correction_ = arenas / std::max(1.0, estimate);
  }

  bool Known(const v1::Layout& layout) const {
    return std::any_of(found_.begin(), found_.end(), [&](const Evaluated& one) {
      return one.layout.SerializeAsString() == layout.SerializeAsString();
    });
  }

  const v1::JobSpec& spec_;
  const Model& model_;
  const Budget& budget_;
  const int fitting_max_;
  const MemoryEstimator memory_;
  std::vector<Evaluated> found_;
  int64_t instructions_ = 0;
  double correction_ = 0;  // arena bytes over estimate of the last that did not fit; 0: none yet
  absl::Status refusal_;
};

// `plain` of them, at the front, are plain.
void BestToFront(size_t plain, std::vector<Evaluated>* evaluated) {
  const auto seconds = [](const Evaluated& one) { return one.simulation.step_seconds; };
  const auto best_of = [&](size_t begin, size_t end) -> std::optional<size_t> {
    std::optional<size_t> fastest, best;
    for (size_t i = begin; i < end; ++i) {
      const Evaluated& one = (*evaluated)[i];
      if (one.fits && (!fastest || seconds(one) < seconds((*evaluated)[*fastest]))) fastest = i;
    }
    for (size_t i = begin; fastest && i < end; ++i) {
      const Evaluated& one = (*evaluated)[i];
      const bool as_fast = one.fits && seconds(one) <= kSameTime * seconds((*evaluated)[*fastest]);
      if (as_fast && (!best || one.device_bytes < (*evaluated)[*best].device_bytes)) best = i;
    }
    return best;
  };
  std::optional<size_t> best = best_of(0, plain);
  const std::optional<size_t> other = best_of(plain, evaluated->size());
  if (other && (!best || seconds((*evaluated)[*other]) < WorthIt(seconds((*evaluated)[*best])))) {
    best = other;
  }
  if (best)
    std::rotate(evaluated->begin(), evaluated->begin() + *best, evaluated->begin() + *best + 1);
  std::stable_sort(evaluated->begin() + (best ? 1 : 0), evaluated->end(),
                   [&](const Evaluated& a, const Evaluated& b) {
                     return std::pair(!a.fits, seconds(a)) < std::pair(!b.fits, seconds(b));
                   });
}

// The front by closed form, below what was compiled.
std::vector<Proposal> SmallerOnes(const std::vector<Proposal>& proposals, const Evaluated& chosen) {
  std::vector<Proposal> smaller;
  int64_t least = chosen.device_bytes - chosen.programs[0].external_bytes();
  for (const Proposal& one : proposals) {
    if (one.to_fit || one.memory.total() * 10 > least * 9) continue;
    least = one.memory.total();
    smaller.push_back(one);
  }
  return smaller;
}

}  // namespace

absl::StatusOr<Searched> SearchLayouts(const v1::JobSpec& spec, const Model& model,
                                       const Budget& given, Effort effort) {
  Budget budget = given;
  budget.external_bytes = ExternalBytes(given);
  ExactSearch search(spec, model, budget, effort);
  Searched searched;
  // A batch that all ranks cannot divide may be divided by fewer.
  const absl::StatusOr<Proposals> plain = Propose(spec, model, budget, Search::kPlain);
  double worth_it = 1e300;
  if (plain.ok()) {
    RETURN_IF_ERROR(search.Try(plain->best, /*last=*/false));
    searched.candidates = plain->compared;
    worth_it = WorthIt(plain->best.front().seconds);
  }
  const size_t plain_count = search.count();
  std::vector<Proposal> proposed;
  if (effort == Effort::kBest || !search.fits()) {
    search.ForgetMisses();
    const Search wide = OffersTiers(spec) ? Search::kTiers : Search::kAll;
    absl::StatusOr<Proposals> all = Propose(spec, model, budget, wide);
    if (!all.ok()) return plain.ok() ? all.status() : plain.status();
    RETURN_IF_ERROR(search.Try(all->best, /*last=*/true, search.fits() ? worth_it : 1e300));
    searched.candidates += all->compared;
    proposed = std::move(all->best);
  }
  ASSIGN_OR_RETURN(searched.evaluated, search.Take());
  BestToFront(plain_count, &searched.evaluated);
  Evaluated& front = searched.evaluated.front();
  if (front.fits) {
    ASSIGN_OR_RETURN(front, Evaluate(spec, model, budget, v1::Layout(front.layout)));
  }
  if (searched.evaluated.front().fits) {
    searched.others = SmallerOnes(proposed, searched.evaluated.front());
  }
  return searched;
}

bool Better(const Evaluated& one, const Evaluated& than) {
  return one.device_bytes < than.device_bytes &&
         one.simulation.step_seconds < than.simulation.step_seconds;
}

bool IsPareto(const Evaluated& one, const std::vector<Evaluated>& evaluated) {
  return one.fits && std::none_of(evaluated.begin(), evaluated.end(), [&](const Evaluated& other) {
           return other.fits && Better(other, one);
         });
}

const Evaluated& NearestToFit(const v1::JobSpec& spec, const Budget& budget,
                              const std::vector<Evaluated>& evaluated) {
  const TierLimits limits = LimitsOf(spec);
  const auto over = [&](const Evaluated& one) {
    const auto part = [](int64_t bytes, int64_t limit) {
      return limit == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(limit);
    };
    return std::max({part(one.device_bytes, budget.device_memory_bytes),
                     part(one.host_bytes, limits.host_bytes),
                     part(one.nvme_bytes, limits.nvme_bytes)});
  };
  return *std::min_element(
      evaluated.begin(), evaluated.end(),
      [&](const Evaluated& a, const Evaluated& b) { return over(a) < over(b); });
}

}  // namespace terrace
