// Which items of a packing problem come again: buffers of one micro-batch and those of a later one
// have the same sizes and lives, as far apart as the passes between them are long.
//
// Items of one chain never meet, so they can all have one offset; packed so a program is a few
// micro-batches large, however many it has, and what fits once fits each time.
//
// In: a problem. Out: the chains, in each item once. Deterministic; thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "coordinator/compiler/pack_problem.h"

namespace terrace {

using PackChains = std::vector<std::vector<int>>;  // items, by birth within a chain

// Every item alone.
PackChains SinglePackChains(const PackProblem& problem);

// By the distance in time at which the most bytes x life come again; empty when nothing does.
PackChains MakePackChains(const PackProblem& problem);

}  // namespace terrace
