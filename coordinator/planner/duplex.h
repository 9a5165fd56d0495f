// What it costs that two directions of a link between tiers are busy at once.
//
// While copies run in both directions each goes at `ratio` times its rate alone (HardwareProfile:
// both at once over the sum of each alone). So a copy of d seconds alone that meets the other
// direction for o of its seconds takes d + o (1 - ratio). How long they meet depends on how long
// they take: Stretched looks at a run and says how long its copies should have taken; repeated over
// new runs that settles, each time by a factor of (1 - ratio).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "coordinator/planner/joint_run.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// True when something of the sequence moves both ways over one link that both ways share.
bool SharesLinks(const StageInput& alone, const v1::HardwareProfile& profile);

// How long each instruction takes, by instruction, beside those of the other direction in `run`.
std::vector<double> Stretched(const StageInput& alone, const std::vector<RunInstruction>& run,
                              const v1::HardwareProfile& profile);

}  // namespace terrace
