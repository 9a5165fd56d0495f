// Where a job goes on: the newest checkpoint whose bytes are whole, and what a person should know
// about it. Rank 0 looks for all.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"
#include "worker/data/token_sum.h"

namespace terrace {

struct ResumePoint {
  int64_t step = 0;                  // 0: from the start
  std::vector<std::string> remarks;  // checkpoints passed over; what changed since
};

// In `spec`.checkpoint.directory, which may be empty or not there yet. Reads every byte of the
// checkpoint. A failure has its reason: FAILED_PRECONDITION when checkpoint.resume forbids it, by
// `never` or because what follows would be no continuation, DATA_LOSS when all are damaged. With
// `never` an epoch after the first goes on from what a job of this name and spec wrote. `data`: the
// tokens that the job would go on with.
absl::StatusOr<ResumePoint> FindResumePoint(const v1::JobSpec& spec, int64_t epoch,
                                            const TokenSums& data);

}  // namespace terrace
