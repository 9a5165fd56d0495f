// The jobs of a sweep: every combination of the values that keys of a spec are to have.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"

namespace terrace {

inline constexpr size_t kSweepJobsMax = 1000;

// Of "train.optimizer.lr=1e-4,3e-4" each, commas inside brackets and quotes not counted. The last
// key changes first. INVALID_ARGUMENT: one is not of that form, a key comes twice, or there would
// be more than kSweepJobsMax jobs.
absl::StatusOr<std::vector<v1::ArrayMember>> SweepOf(const std::vector<std::string>& sweeps,
                                                     uint32_t running_max);

// "train.optimizer.lr=1e-4, train.seed=2".
std::string ValuesText(const v1::ArrayMember& member);

}  // namespace terrace
