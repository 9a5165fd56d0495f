// The exact search: the layouts that the planner proposes are compiled, checked and simulated until
// enough of them fit.
//
// Plain layouts come first; only when none fits are those tried that buy memory with time
// (recompute, ZeRO, tensor, pipeline and context parallelism), the fastest first; and only when
// none of these does either, those that use the other tiers `resources` offers. What one layout
// really needs corrects the closed form for the next, and the smallest of all is always tried: if a
// layout fits, one that fits is found.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/prepare/evaluate.h"

namespace terrace {

// Never empty. The best first when one fits: the fastest, but of those as fast within two percent
// the smallest. INVALID_ARGUMENT when no layout respects the spec or none can be compiled.
absl::StatusOr<std::vector<Evaluated>> SearchLayouts(const v1::JobSpec& spec, const Model& model,
                                                     const Budget& budget);

// The one that exceeds its tightest tier by the smallest factor. REQUIRES: not empty.
const Evaluated& NearestToFit(const v1::JobSpec& spec, const Budget& budget,
                              const std::vector<Evaluated>& evaluated);

}  // namespace terrace
