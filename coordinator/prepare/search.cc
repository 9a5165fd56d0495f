// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/search.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "coordinator/planner/estimate.h"

namespace terrace {
namespace {

// Layouts that fit before the fastest is chosen, and those that may fail to before the smallest is
// tried.
constexpr int kFittingMax = 4;
constexpr int kMissesMax = 8;
// Programs this long are not compiled several times to compare: the first layout that fits is
// taken.
constexpr int64_t kInstructionsMax = 500'000;
// Of layouts that differ by less in time, the one with the least memory.
constexpr double kSameTime = 1.02;

class ExactSearch {
 public:
  ExactSearch(const v1::JobSpec& spec, const Model& model, const Budget& budget)
      : spec_(spec), model_(model), budget_(budget), estimator_(spec, model) {}

  // `layouts` are the fastest first.
  absl::Status Try(const std::vector<v1::Layout>& layouts) {
    const auto smaller = [this](const v1::Layout& a, const v1::Layout& b) {
      return estimator_.DeviceBytes(a) < estimator_.DeviceBytes(b);
    };
    const auto smallest = std::min_element(layouts.begin(), layouts.end(), smaller);
    int misses = 0;
    for (auto layout = layouts.begin(); layout != layouts.end() && !Enough(); ++layout) {
      const bool hopeful = misses < kMissesMax && MayFit(*layout);
      if ((!hopeful && layout != smallest) || Known(*layout)) continue;
      absl::StatusOr<Evaluated> one = Evaluate(spec_, model_, budget_, *layout);
      if (absl::IsInvalidArgument(one.status())) {  // another layout may be compiled
        if (refusal_.ok()) refusal_ = one.status();
        continue;
      }
      RETURN_IF_ERROR(one.status());
      one->fits ? ++fitting_ : ++misses;
      if (!one->fits && !one->layout.has_offload()) Correct(*one);
      instructions_ += Instructions(*one);
      found_.push_back(*std::move(one));
    }
    return absl::OkStatus();
  }

  bool fits() const { return fitting_ > 0; }

  // Layouts of another kind follow, of which those that failed say nothing.
  void ForgetMisses() { correction_ = 0; }

  absl::StatusOr<std::vector<Evaluated>> Take() {
    if (found_.empty()) return refusal_;
    return std::move(found_);
  }

 private:
  bool Enough() const {
    return fitting_ >= kFittingMax || (fitting_ > 0 && instructions_ > kInstructionsMax);
  }

  static int64_t Instructions(const Evaluated& evaluated) {
    int64_t count = 0;
    for (const v1::Program& program : evaluated.programs) {
      for (const v1::Sequence& sequence : program.sequences())
        count += sequence.instructions_size();
    }
    return count;
  }

  bool MayFit(const v1::Layout& layout) const {
    const MemoryEstimate memory = estimator_.Memory(layout);
    MemoryEstimate elsewhere = memory;
    elsewhere.state_bytes = elsewhere.gradient_bytes = elsewhere.activation_bytes = 0;
    if (Hopeless(elsewhere, spec_, budget_)) return false;
    if (budget_.device_memory_bytes == 0) return true;
    const double limit = static_cast<double>(budget_.device_memory_bytes);
    const double bytes = static_cast<double>(memory.total());
    return correction_ == 0
               ? bytes <= kHopeless * limit
               : bytes * correction_ + static_cast<double>(ExternalBytes(budget_)) <= limit;
  }

  void Correct(const Evaluated& missed) {
    const auto arenas = static_cast<double>(missed.device_bytes - ExternalBytes(budget_));
    const auto estimate = static_cast<double>(estimator_.DeviceBytes(missed.layout));
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
  const Estimator estimator_;
  std::vector<Evaluated> found_;
  int fitting_ = 0;
  int64_t instructions_ = 0;
  double correction_ = 0;  // arena bytes over estimate of the last that did not fit; 0: none yet
  absl::Status refusal_;
};

void BestToFront(std::vector<Evaluated>* evaluated) {
  const auto faster = [](const Evaluated& a, const Evaluated& b) {
    return std::pair(!a.fits, a.simulation.step_seconds) <
           std::pair(!b.fits, b.simulation.step_seconds);
  };
  std::stable_sort(evaluated->begin(), evaluated->end(), faster);
  if (!evaluated->front().fits) return;
  const double enough = kSameTime * evaluated->front().simulation.step_seconds;
  auto best = evaluated->begin();
  for (auto it = evaluated->begin(); it != evaluated->end(); ++it) {
    const bool as_fast = it->fits && it->simulation.step_seconds <= enough;
    if (as_fast && it->device_bytes < best->device_bytes) best = it;
  }
  std::rotate(evaluated->begin(), best, best + 1);
}

}  // namespace

absl::StatusOr<std::vector<Evaluated>> SearchLayouts(const v1::JobSpec& spec, const Model& model,
                                                     const Budget& budget) {
  ExactSearch search(spec, model, budget);
  ASSIGN_OR_RETURN(const std::vector<v1::Layout> plain, Candidates(spec, model, budget));
  RETURN_IF_ERROR(search.Try(plain));
  if (!search.fits()) {
    ASSIGN_OR_RETURN(const std::vector<v1::Layout> all,
                     Candidates(spec, model, budget, Search::kAll));
    RETURN_IF_ERROR(search.Try(all));
  }
  if (!search.fits() && OffersTiers(spec)) {
    search.ForgetMisses();
    ASSIGN_OR_RETURN(const std::vector<v1::Layout> tiers,
                     Candidates(spec, model, budget, Search::kTiers));
    RETURN_IF_ERROR(search.Try(tiers));
  }
  ASSIGN_OR_RETURN(std::vector<Evaluated> evaluated, search.Take());
  BestToFront(&evaluated);
  return evaluated;
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
