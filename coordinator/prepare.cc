// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/planner/profiles.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/plan_report.h"
#include "coordinator/prepare/what_fits.h"

namespace terrace {
namespace {

// Layouts that are compiled before the fastest is chosen.
constexpr size_t kExactMax = 4;
// Of layouts that differ by less in time, the one with the least memory.
constexpr double kSameTime = 1.02;

// What layouts are compared with. Measured rates differ from one start of a worker to the next, and
// a job that is run again or resumed must get the same layout, so that its sums are the same bit by
// bit: measurements tell how long the chosen layout takes, they do not choose it.
Budget ForChoosing(const Budget& budget) {
  Budget reference = budget;
  if (budget.profile.measured() || budget.profile.f32_flops_per_second() <= 0) {
    reference.profile = CpuProfile(budget.threads_per_rank, budget.profile.name());
  }
  return reference;
}

// The likeliest layouts exactly, until enough of them fit; at least the smallest, so that a refusal
// can name its bytes.
absl::StatusOr<std::vector<Evaluated>> EvaluateBest(const v1::JobSpec& spec, const Model& model,
                                                    const Budget& budget) {
  ASSIGN_OR_RETURN(const std::vector<v1::Layout> layouts, Candidates(spec, model, budget));
  const auto smallest = std::min_element(
      layouts.begin(), layouts.end(),
      [](const auto& a, const auto& b) { return a.micro_batch() < b.micro_batch(); });
  const double limit = kHopeless * static_cast<double>(budget.device_memory_bytes);
  std::vector<Evaluated> evaluated;
  size_t fitting = 0;
  for (auto layout = layouts.begin(); layout != layouts.end() && fitting < kExactMax; ++layout) {
    const double bytes = static_cast<double>(EstimateDeviceBytes(spec, model, *layout));
    if (limit > 0 && bytes > limit && layout != smallest) continue;
    ASSIGN_OR_RETURN(Evaluated one, Evaluate(spec, model, budget, *layout));
    fitting += one.fits ? 1 : 0;
    evaluated.push_back(std::move(one));
  }
  return evaluated;
}

// Moves the best to the front. False when none fits.
bool ChooseBest(std::vector<Evaluated>* evaluated) {
  const auto faster = [](const Evaluated& a, const Evaluated& b) {
    return std::pair(!a.fits, a.simulation.step_seconds) <
           std::pair(!b.fits, b.simulation.step_seconds);
  };
  std::stable_sort(evaluated->begin(), evaluated->end(), faster);
  if (!evaluated->front().fits) return false;
  const double enough = kSameTime * evaluated->front().simulation.step_seconds;
  auto best = evaluated->begin();
  for (auto it = evaluated->begin(); it != evaluated->end(); ++it) {
    const bool as_fast = it->fits && it->simulation.step_seconds <= enough;
    if (as_fast && it->device_bytes < best->device_bytes) best = it;
  }
  std::rotate(evaluated->begin(), best, best + 1);
  return true;
}

int64_t SmallestBytes(const std::vector<Evaluated>& evaluated) {
  return std::min_element(
             evaluated.begin(), evaluated.end(),
             [](const auto& a, const auto& b) { return a.device_bytes < b.device_bytes; })
      ->device_bytes;
}

}  // namespace

absl::StatusOr<Prepared> Prepare(const v1::JobSpec& spec, const Budget& given) {
  Budget budget = ForChoosing(given);
  ASSIGN_OR_RETURN(const Model model, ReadModel(spec));
  ASSIGN_OR_RETURN(std::vector<Evaluated> evaluated, EvaluateBest(spec, model, budget));
  if (!ChooseBest(&evaluated)) return DoesNotFit(spec, budget, SmallestBytes(evaluated));

  if (given.profile.measured()) {
    budget.profile = given.profile;
    for (Evaluated& one : evaluated) {
      ASSIGN_OR_RETURN(one.simulation, Simulate(one.programs[0], "train", budget.profile));
    }
  }
  Evaluated chosen = std::move(evaluated.front());
  evaluated.erase(evaluated.begin());
  Prepared prepared;
  prepared.plan = ReportPlan(spec, model, budget, chosen, evaluated);
  prepared.programs = std::move(chosen.programs);
  return prepared;
}

}  // namespace terrace
