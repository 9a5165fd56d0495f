// The bytes that hold something on one tier over the simulated time of a sequence, by class. A step
// buffer is live from the start of the first instruction that names it to the end of the last; a
// persistent one always.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/simulator/simulate.h"
#include "proto/report/live_memory.h"

namespace terrace {

struct MemoryOverTime {
  std::vector<ByClass> columns;  // equal parts of the time, each at its fullest moment
  int64_t peak_bytes = 0;
  double peak_seconds = 0;  // the first such moment
};

// REQUIRES: `run` is of the sequence of the program, which has no loops; columns > 0; seconds > 0.
MemoryOverTime MemoryOf(const v1::Program& program, const v1::Sequence& sequence,
                        const std::vector<RunInstruction>& run, v1::Tier tier, double seconds,
                        int columns);

}  // namespace terrace
