// How far the time of a what-if plan may be off, and what it hangs on most.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "coordinator/planner/planner.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Sets plan.time.uncertainty by blind_errors.h, and of the chosen layout, by closed form, the rate
// whose small change changes the step most; nothing where the budget's profile was measured. Errors
// are those of reading the model.
absl::Status ReportUncertainty(const v1::JobSpec& spec, const Budget& budget, v1::Plan* plan);

}  // namespace terrace
