// For a job that does not fit: what would. Found by really compiling changes of the spec, the
// cheapest first: another layout (a smaller micro-batch, recompute, ZeRO, other degrees of
// parallelism, where they were pinned) costs nothing but time, and so do the host's memory and
// NVMe; bf16 costs digits, a shorter sequence changes what is learned.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// A change of the spec, compiled.
struct Change {
  std::string words;  // "layout.micro_batch 1"
  Evaluated evaluated;
};
// The cheapest first, at most `most`; none when no layout, precision or sequence_length fits.
std::vector<Change> ChangesThatFit(const v1::JobSpec& spec, const Budget& budget, size_t most);

// RESOURCE_EXHAUSTED that says what the job's `nearest` layout needs of each tier that is too
// small, what there is, what holds the most, and the cheapest of `changes`.
absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Evaluated& nearest,
                        const std::vector<Change>& changes);
absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Evaluated& nearest);

}  // namespace terrace
