// The exact search: the layouts that the planner proposes are compiled, checked and simulated until
// enough of them fit.
//
// Plain layouts come first (what is not pinned is off), then all others. What one layout really
// needs corrects what is asked of it next: a stage that is over its bytes computes more layers
// again, one with room to spare fewer. The smallest of all is always tried: if a layout fits, one
// that fits is found. A prediction is good for a tenth: a plain layout that is as fast within that
// is chosen.
//
// It stops by counting layouts and instructions, never by time: the same in, the same out. Pure and
// thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/evaluate.h"

namespace terrace {

enum class Effort {
  kBest,      // several that fit are compared
  kFirstFit,  // whether anything fits, and what
};

struct Searched {
  std::vector<Evaluated> evaluated;  // never empty; the chosen one first when one fits
  std::vector<Proposal> others;      // by closed form only, that fit in less memory than the chosen
  int64_t candidates = 0;            // compared by closed form
};

// INVALID_ARGUMENT when no layout respects the spec or none can be compiled.
absl::StatusOr<Searched> SearchLayouts(const v1::JobSpec& spec, const Model& model,
                                       const Budget& budget, Effort effort = Effort::kBest);

// The one that exceeds its tightest tier by the smallest factor. REQUIRES: not empty.
const Evaluated& NearestToFit(const v1::JobSpec& spec, const Budget& budget,
                              const std::vector<Evaluated>& evaluated);

// Both faster and smaller.
bool Better(const Evaluated& one, const Evaluated& than);
// Nothing that fits is better.
bool IsPareto(const Evaluated& one, const std::vector<Evaluated>& evaluated);

}  // namespace terrace
