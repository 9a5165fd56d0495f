// Which stages a picture of a prepared job shows, and where they are in it.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "coordinator/prepare/prepare.h"
#include "proto/program/played_program.h"

namespace terrace {

// What pictures of a stage are of: the list of what was simulated. Borrows `prepared`.
PlayedProgram DrawnOf(const Prepared& prepared, int stage);
// What they leave out of the step, for headings: "502 iterations of its loop are left out"; empty:
// nothing.
std::string LeftOutText(const Prepared& prepared);

// The sequence that was simulated; REQUIRES: the program has it, as all that are prepared do.
const v1::Sequence& TrainOf(const v1::Program& program);
// In Prepared.programs and in the simulation.
int IndexOf(const Prepared& prepared, uint32_t stage);
// At most `most` of 0 to count - 1, the first and the last among them.
std::set<int> EvenlyChosen(int count, size_t most);

}  // namespace terrace
