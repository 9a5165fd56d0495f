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

// Makes the jobs of texts like "train.optimizer.lr=1e-4,3e-4". Commas inside brackets and quotes
// part no values. From one job to the next the last key changes first. INVALID_ARGUMENT: a text has
// another form, a key comes twice, or there would be more than kSweepJobsMax jobs.
absl::StatusOr<std::vector<v1::ArrayMember>> SweepOf(const std::vector<std::string>& sweeps,
                                                     uint32_t running_max);

// "train.optimizer.lr=1e-4, train.seed=2".
std::string ValuesText(const v1::ArrayMember& member);

}  // namespace terrace
