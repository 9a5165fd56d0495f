// How the ranks can be divided among data, tensor, pipeline and context parallelism, and the batch
// among them.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct Degrees {
  int64_t dp = 1;
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t cp = 1;
};

// Ascending.
std::vector<int64_t> Divisors(int64_t number);

// All ways that respect what is pinned and use all ranks; tensor parallelism stays inside a node
// unless it is pinned. With kPlain only dp is more than 1 of what is not pinned, where that works
// out. INVALID_ARGUMENT when the pinned degrees and the resources do not match.
absl::StatusOr<std::vector<Degrees>> DegreesFor(const v1::LayoutSpec& pinned, const Budget& budget,
                                                Search search);

// Sequences that one rank trains on in a step; with train.preference whole pairs.
absl::StatusOr<int64_t> RankBatch(const v1::TrainSpec& train, int64_t dp);

// Those that divide a rank's batch.
absl::StatusOr<std::vector<int64_t>> MicroBatches(const v1::LayoutSpec& pinned,
                                                  const v1::TrainSpec& train, int64_t rank_batch);

}  // namespace terrace
