// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/uncertainty.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "coordinator/hardware/blind_errors.h"
#include "coordinator/hardware/rates.h"
#include "coordinator/planner/estimate.h"
#include "coordinator/prepare/evaluate.h"

namespace terrace {
namespace {

// Small enough that nothing else becomes the slowest.
constexpr double kLower = 0.98;

}  // namespace

absl::Status ReportUncertainty(const v1::JobSpec& spec, const Budget& budget, v1::Plan* plan) {
  if (budget.profile.measured()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Model model, ReadModel(spec));
  const Estimator estimator(spec, model);
  const v1::HardwareProfile profile = ProfileFor(spec, budget.profile);
  v1::TimeEstimate* time = plan->mutable_time();
  v1::Uncertainty* uncertainty = time->mutable_uncertainty();
  uncertainty->set_low_seconds(time->step_seconds() * kBlindErrors.low);
  uncertainty->set_high_seconds(time->step_seconds() * kBlindErrors.high);
  uncertainty->set_coverage(kBlindErrors.coverage);
  uncertainty->set_runs(kBlindErrors.runs);
  const double seconds = estimator.StepSeconds(plan->layout(), profile);
  if (seconds <= 0) return absl::OkStatus();
  for (const Rate rate : kRates) {
    const double slower = estimator.StepSeconds(plan->layout(), WithRate(profile, rate, kLower));
    const double share = std::min(1.0, std::log(slower / seconds) / -std::log(kLower));
    if (share <= uncertainty->rate_share()) continue;
    uncertainty->set_rate_share(share);
    uncertainty->set_rate(RateName(rate, plan->layout().precision()));
  }
  return absl::OkStatus();
}

}  // namespace terrace
