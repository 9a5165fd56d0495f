// Where the time of each stage's step goes: what its compute stream does by phase, and what it
// waits for. The parts of a stage sum to the step.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/prepare/prepare.h"
#include "proto/drawing/svg.h"

namespace terrace {

struct TimePart {
  std::string name;
  std::string colour;
  double seconds = 0;
};
struct StageTime {
  uint32_t stage = 0;
  std::vector<TimePart> parts;  // the same ones in each stage
};
// Parts that are zero in every stage are left out.
std::vector<StageTime> BreakDown(const Prepared& prepared);

// Of many stages only some are drawn.
Picture BreakdownChart(const Prepared& prepared);

}  // namespace terrace
