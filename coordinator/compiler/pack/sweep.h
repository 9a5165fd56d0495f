// One pass over time that gives what sticks out above a ceiling an address of pages below it.
//
// In: a problem, a placement of all its items, what lies in front of them all the time, and the
// addresses that there are; their memory is the ceiling. Out: an address for each item, and more
// addresses. An item gets its pages when it is born; where too few are free until it dies, those
// that come later and lie in the way are placed again, each when it is born. What was born earlier
// is in nobody's way that lives are intervals: what is free at a birth stays free, so that nothing
// but parts of pages is lost. Deterministic, bounded by its steps. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/compiler/pack/addresses.h"
#include "coordinator/compiler/pack/problem.h"

namespace terrace {

// An arena has at most so many, of the 65,530 mappings that a process may have (vm.max_map_count).
inline constexpr int64_t kPackRunsMax = 8192;
// Second addresses are at most so many times the memory.
inline constexpr int64_t kPackAddressTimes = 8;

// Offsets count from behind `base_bytes`. False where this does not do or `steps`, which it takes
// its steps from, are used up; `offsets` and `addresses` are then of no use. REQUIRES: base_bytes,
// at most the memory, and offsets are multiples of kPackAlignment.
bool SweepIntoPages(const PackProblem& problem, int64_t base_bytes, std::vector<int64_t>* offsets,
                    PackAddresses* addresses, int64_t* steps);

}  // namespace terrace
