// The exact search: the layouts that the planner proposes are compiled and simulated
// (search_trial.h), and of those that fit one is chosen (search_choice.h).
//
// Kind by kind (planner.h), from plain layouts to those that other tiers hold parts of, each only
// where it promises to be faster by what predictions are good for or where nothing before it fits.
//
// It stops by counting layouts and instructions: the same in, the same out. Only where it is given
// something to ask, it may be ended early, with no result. Pure but for that, and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/evaluate.h"

namespace terrace {

// Where nothing fits no more instructions are compiled to find that out.
inline constexpr int64_t kUnfitInstructionsMax = 240'000;

// And so many for layouts that closed forms call a little too large.
inline constexpr int64_t kNearlyInstructionsMax = 360'000;

// And so many for the plainest layouts of each split of the ranks, before the job is refused.
inline constexpr int64_t kPlainerInstructionsMax = 360'000;

// And so many for layouts that promise to be faster than what was found to fit with the help of
// other tiers, where closed forms of time are good for less.
inline constexpr int64_t kPromisingInstructionsMax = 240'000;

// What a search costs, counted and never timed.
struct SearchCost {
  int64_t compared = 0;      // layouts, by closed form
  int64_t instructions = 0;  // compiled
};

// Asked before each layout is compiled; false ends the search. May be empty.
using InTime = std::function<bool()>;

struct SearchOptions {
  // true: the search ends with the first layout that fits, and is RESOURCE_EXHAUSTED when all of
  // them would cost too much to compile. false: it compares several that fit, and compiles one
  // layout in any case.
  bool first_fit = false;
  // With `first_fit`: also what is tried where nothing else fits.
  bool last_resorts = false;
  int64_t instructions_max = kUnfitInstructionsMax;
  InTime in_time = {};
};

struct Searched {
  // Empty only with `first_fit`, where the instructions were spent before anything was compiled:
  // then not all was tried. First the chosen one or, when none fits, the one that comes nearest,
  // which with `first_fit` is not simulated.
  std::vector<Evaluated> evaluated;
  std::vector<Proposal> others;  // by closed form only, that fit in less memory than the chosen
  // Where nothing fits: by closed form, smaller than what comes nearest, and too long to compile.
  std::optional<Proposal> smaller;
  int64_t candidates = 0;  // compared by closed form
  bool all_tried = true;   // false: of those that may fit some would have cost too much
};

// INVALID_ARGUMENT when no layout respects the spec or none can be compiled, DEADLINE_EXCEEDED when
// `in_time` says so. What it cost is added
// to `cost`, whether it succeeds or not.
absl::StatusOr<Searched> SearchLayouts(const v1::JobSpec& spec, const Model& model,
                                       const Budget& budget, const SearchOptions& options = {},
                                       SearchCost* cost = nullptr);

}  // namespace terrace
