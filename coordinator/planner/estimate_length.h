// The closed form of a program's length: how many instructions of all stages' training steps there
// are, so that what takes too long to compile is known before it is compiled. A test holds it to a
// factor of what the compiler makes. The part of a step that is a loop counts once.
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

// Instructions. Layouts are those that CheckLayout passes, completed.
double ProgramLength(const EstimateModel& model, const v1::Layout& layout);

// Passes of micro-batches through layers that are compiled, of all stages: what compiling takes
// goes with them.
int64_t LayerPasses(const v1::Layout& layout, int64_t layers);

// Layouts of more are compared only where none of fewer fits: to compile one takes as long as all
// others together. Llama 3 405B in 16 micro-batches has 2,016, 70B in 32 has 2,560.
inline constexpr int64_t kShortLayerPasses = 3'000;
// A layout that is compiled only to show that nothing fits may have twice as many: it is the only
// one.
inline constexpr int64_t kShownLayerPasses = 2 * kShortLayerPasses;

}  // namespace terrace
