// Trains the programs of a job with all ranks on the calling thread.
//
// Memory is full of ones before anything is put into it: what a program reads and has not written
// is not a number.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/system/rank_state.h"

namespace terrace {

// By rank. UNIMPLEMENTED for programs with other tiers than the device or the caching allocator;
// otherwise as RunInTurns.
absl::StatusOr<std::vector<RankResult>> TrainInTurns(const JobData& data,
                                                     const std::vector<v1::Program>& programs,
                                                     int64_t steps, uint32_t seed);

}  // namespace terrace
