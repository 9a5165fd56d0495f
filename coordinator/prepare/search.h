// The exact search: the layouts that the planner proposes are tried (search_trial.h) as samples
// (search_sample.h), one is chosen (search_choice.h), and that one is compiled whole.
//
// Kind by kind (planner.h), from plain layouts to those that other tiers hold parts of, each only
// where it promises to be faster by what predictions are good for or where nothing before it fits.
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
  // Never empty; first the chosen one or, when none fits, the one that comes nearest: whole, unless
  // its step is very long and far from fitting. That one and the others are samples.
  std::vector<Evaluated> evaluated;
  std::vector<Proposal> others;  // by closed form only, that fit in less memory than the chosen
  int64_t candidates = 0;        // compared by closed form
  int64_t instructions = 0;      // compiled
};

// INVALID_ARGUMENT when no layout respects the spec or none can be compiled.
absl::StatusOr<Searched> SearchLayouts(const v1::JobSpec& spec, const Model& model,
                                       const Budget& budget, Effort effort = Effort::kBest);

}  // namespace terrace
