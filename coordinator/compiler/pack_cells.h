// A packing problem on a grid of cells: most programs have few sizes that matter, and most of those
// are multiples of one.
//
// In: a problem and a ceiling. Out: the size of a cell, how many lie below the ceiling, which items
// go there, rounded up to whole cells, and where the others lie: small ones, which would waste most
// of a cell, share a region of their own. Pure; thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/compiler/pack_problem.h"

namespace terrace {

struct PackCells {
  int64_t cell_bytes = 0;  // 0: on no grid does everything fit below the ceiling
  int cells = 0;           // below the ceiling, beside the small items
  std::vector<int> large;  // items
  std::vector<int> small;
  std::vector<int64_t> small_offsets;  // in their region, one a small item
  int64_t small_bytes = 0;
};

// The largest cells that leave `room_percent` of the most room that any leave: coarse ones are
// quick, fine ones waste less.
PackCells MakePackCells(const PackProblem& problem, int64_t ceiling_bytes, int room_percent);

}  // namespace terrace
