// How tensors that an optimizer updates as wholes are dealt to the ranks that share states with
// ZeRO (Muon for LLM training, Liu et al. 2025, arXiv 2502.16982, section 2.3, shards by elements
// and gathers; Megatron-LM's layer-wise optimizer deals as here).
//
// The same matrix of several layers is dealt in rounds: in each every rank gets one, whole. All
// ranks take the same instructions, so a round in which some get none takes the memory and the time
// of a full one. A last round of which at most half would be filled is not dealt: every rank keeps
// and updates these matrices. What is no matrix of a layer is kept by every rank as well: a table
// has no equal, and vectors are small.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/optimizer_rule.h"

namespace terrace {

struct Deal {
  int64_t rounds = 0;
  int64_t kept = 0;  // of the tensors, those that every rank has
};

// Of `count` tensors that are alike.
constexpr Deal DealOf(int64_t count, int64_t ranks) {
  const int64_t left = count % ranks;
  if (2 * left > ranks) return {count / ranks + 1, 0};
  return {count / ranks, left};
}

// True for a rule that needs all of a tensor and of its gradient at once.
constexpr bool UpdatesWholes(const kernels::OptimizerRow& rule) {
  return rule.whole_matrix || rule.factored;
}

}  // namespace terrace
