// How many bytes of the device arena hold something live, over the time of a simulated sequence.
// A STEP buffer is live from the start of the first instruction that names it to the end of the
// last; a PERSISTENT one always. The sequence has no loops (proto/played_program.h).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/planner/joint_run.h"

namespace terrace {

struct MemoryPoint {
  double seconds = 0;
  int64_t bytes = 0;  // from then until the next point
};

// Starts at 0 s; one point at each change.
std::vector<MemoryPoint> MemoryCurve(const v1::Program& program, const v1::Sequence& sequence,
                                     const std::vector<RunInstruction>& run);

}  // namespace terrace
