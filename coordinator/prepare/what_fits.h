// For a job that does not fit: what would. Found by really compiling changes of the spec, the
// cheapest first: another layout (a smaller micro-batch, recompute, ZeRO, other degrees of
// parallelism, where they were pinned) costs nothing but time, bf16 costs digits, a shorter
// sequence changes what is learned.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "coordinator/planner/planner.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// RESOURCE_EXHAUSTED that says what the job needs (`needed_bytes`, of its smallest layout), what
// there is, and the cheapest change that fits.
absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, int64_t needed_bytes);

}  // namespace terrace
