// Programs for tests of the simulator whose instructions take whole seconds.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/simulator/simulate.h"

namespace terrace {

// 4 bytes a second everywhere: an f32 element takes a second, also over the link of two ranks.
v1::HardwareProfile OneElementASecond();

// Either a fill of `seconds` elements on stream 0 or an all-reduce of them on stream 1.
struct Line {
  int64_t seconds = 0;
  bool reduce = false;
  std::vector<uint32_t> waits;
  v1::Phase phase = v1::BACKWARD;
};

// A program of two ranks that share data, whose sequence "train" has these lines in order.
v1::Program MakeProgram(const std::vector<Line>& lines);

// "train" of the program at OneElementASecond; fails the test where it is refused.
Simulation SimulateOrDie(const v1::Program& program);

}  // namespace terrace
