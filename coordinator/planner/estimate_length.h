// The closed form of a program's length: how many instructions of all stages' training steps there
// are, so that what takes too long to compile is known before it is compiled. A test holds it to a
// factor of what the compiler makes.
//
// A pass of a layer has some dozens of instructions, and more for each step round a context ring.
// What rests on other tiers comes and goes in chunks: weights for each pass, gradients for each
// backward pass, what the optimizer updates once a step; on NVMe through the host.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coordinator/planner/estimate_stages.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Of steps of so many micro-batches, all of them together. Layouts are those that CheckLayout
// passes, completed.
double ProgramLength(const EstimateModel& model, const v1::Layout& layout, int64_t micro_batches,
                     int64_t steps);

}  // namespace terrace
