// Packing below a ceiling by ejections, for programs that are tight at many moments at once: what
// finds no free cells takes those of the items that are cheapest to move, which then look for cells
// themselves.
//
// An item costs its size to eject, and as much more each time that it finds nothing free itself:
// what is hard to place comes to rest and what is easy makes way (after the ejection pool of Nagata
// and Braysy 2009, for vehicle routing). It works on a grid (pack_cells.h) and starts with nothing
// placed, again and again in other orders; first with what comes again in chains (pack_repeats.h).
//
// In: a problem, the ceiling, a budget of steps (2 to 6 nanoseconds each). Out: a placement below
// the ceiling, or none. Deterministic: integers, a generator with a fixed seed. Thread-safe: no
// state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coordinator/compiler/pack_problem.h"

namespace terrace {

// Without offsets when none was found. REQUIRES: at least one item.
PackPlacement PackByEjection(const PackProblem& problem, int64_t ceiling_bytes, int64_t steps);

}  // namespace terrace
