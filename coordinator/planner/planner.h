// Chooses the layout: candidates in closed form, the best few compiled, checked and simulated
// exactly; the fastest that fits wins. A pinned key is respected or refused with the reason and the
// cheapest change that would fit.
//
// Pure: hardware rates and budgets are arguments. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/model/model.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// What the job may use: read off the spec and, where the spec leaves it open, off the workers that
// are there.
struct Budget {
  uint32_t nodes = 1;
  uint32_t ranks = 1;
  uint32_t threads_per_rank = 1;
  int64_t device_memory_bytes = 0;  // per rank; 0: unlimited
  v1::HardwareProfile profile;
};

// All layouts that respect the spec, fastest first by closed form. INVALID_ARGUMENT when none can
// (for example a global batch that the data-parallel ranks do not divide), naming the keys and the
// nearest values that work.
absl::StatusOr<std::vector<v1::Layout>> Candidates(const v1::JobSpec& spec, const Model& model,
                                                   const Budget& budget);

// A closed-form guess of one rank's device bytes: ranks candidates before they are compiled.
int64_t EstimateDeviceBytes(const v1::JobSpec& spec, const Model& model, const v1::Layout& layout);

}  // namespace terrace
