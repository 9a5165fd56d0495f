// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/planner/profiles.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/lengths_report.h"
#include "coordinator/prepare/offload_report.h"
#include "coordinator/prepare/plan_report.h"
#include "coordinator/prepare/search.h"
#include "coordinator/prepare/what_fits.h"

namespace terrace {
namespace {

// What layouts are compared with. Measured rates differ from one start of a worker to the next, and
// a job that is run again or resumed must get the same layout, so that its sums are the same bit by
// bit: measurements tell how long the chosen layout takes, they do not choose it.
Budget ForChoosing(const v1::JobSpec& spec, const Budget& budget) {
  Budget reference = budget;
  if (budget.profile.measured() || budget.profile.f32_flops_per_second() <= 0) {
    reference.profile = CpuProfile(budget.threads_per_rank, budget.profile.name());
  }
  reference.profile = ProfileFor(spec, reference.profile);
  return reference;
}

}  // namespace

absl::StatusOr<Prepared> Prepare(const v1::JobSpec& spec, const Budget& given) {
  Budget budget = ForChoosing(spec, given);
  ASSIGN_OR_RETURN(const Model model, ReadModel(spec));
  ASSIGN_OR_RETURN(std::vector<Evaluated> evaluated, SearchLayouts(spec, model, budget));
  if (!evaluated.front().fits)
    return DoesNotFit(spec, budget, NearestToFit(spec, budget, evaluated));

  if (given.profile.measured()) {
    budget.profile = ProfileFor(spec, given.profile);
    for (Evaluated& one : evaluated) {
      ASSIGN_OR_RETURN(one.simulation, Simulate(one.programs, "train", budget.profile));
    }
  }
  Evaluated chosen = std::move(evaluated.front());
  evaluated.erase(evaluated.begin());
  Prepared prepared;
  prepared.plan = ReportPlan(spec, model, budget, chosen, evaluated);
  ASSIGN_OR_RETURN(const std::string lengths, StepsByLength(chosen.programs, budget.profile));
  if (!lengths.empty()) {
    prepared.plan.set_binding_constraint(
        absl::StrCat(prepared.plan.binding_constraint(), "\n", lengths));
  }
  RETURN_IF_ERROR(CheckDriveLife(spec, prepared.plan));
  prepared.programs = std::move(chosen.programs);
  prepared.simulation = std::move(chosen.simulation);
  return prepared;
}

}  // namespace terrace
