// For a job that does not fit: what would. Found by really compiling changes of the spec, the
// cheapest first: another layout (a smaller micro-batch, recompute, ZeRO, other degrees of
// parallelism, where they were pinned) costs nothing but time, and so do the host's memory and
// NVMe; bf16 costs digits, a shorter sequence changes what is learned.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// RESOURCE_EXHAUSTED that says what the job's `nearest` layout needs of each tier that is too
// small, what there is, and the cheapest change that fits.
absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Evaluated& nearest);

}  // namespace terrace
