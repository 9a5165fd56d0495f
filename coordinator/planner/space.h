// The layouts that a spec leaves open: every way to divide the ranks, the batch and the layers, and
// to share the states, as the dimensions of the model allow.
//
// What is pinned is kept. With Search::kPlain what is not pinned is off. Left out is what is never
// better: gpipe beside 1f1b, breadth_first on stages whose runs share nothing, tensor parallelism
// without sequence parallelism where that is possible. Of breadth_first's numbers of chunks powers
// of two and a layer each are proposed.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/planner/planner.h"

namespace terrace {

// Calls `found` with each, complete, with all on the device but what is pinned; of recompute only
// what is pinned is set. It says whether to go on. OK when at least one was found, or else the
// first refusal.
absl::Status ForEachLayout(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                           Search search, const std::function<bool(const v1::Layout&)>& found);

}  // namespace terrace
