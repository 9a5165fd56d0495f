// Proposes layouts: those that respect the pinned keys and the model's dimensions, fastest first by
// closed form. What is compiled, checked and simulated exactly, and what is chosen, is
// prepare/search.h's.
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
  uint32_t ranks = 1;  // on all nodes; a layout uses them all
  uint32_t threads_per_rank = 1;
  int64_t device_memory_bytes = 0;  // per rank; 0: unlimited
  v1::HardwareProfile profile;
};

enum class Search {
  kPlain,  // what is not pinned is off: data parallelism over all ranks, no ZeRO, no recompute
  kAll,    // every combination that saves memory, without those that the closed form calls hopeless
};

// A layout whose estimate is this far over the budget is not worth compiling.
inline constexpr double kHopeless = 1.3;

// Complete layouts, never none. INVALID_ARGUMENT when none can respect the spec (more ranks than
// devices, a batch or a dimension that does not divide), naming the keys and the nearest values
// that work.
absl::StatusOr<std::vector<v1::Layout>> Candidates(const v1::JobSpec& spec, const Model& model,
                                                   const Budget& budget,
                                                   Search search = Search::kPlain);

// Nodes that the pinned degrees of parallelism ask for, within resources.nodes.
uint32_t NodesFor(const v1::JobSpec& spec);

}  // namespace terrace
