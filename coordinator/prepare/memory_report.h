// What a plan says of memory: bytes by class at each arena's peak, and what binds: the tier and
// stage nearest to its limit, the instruction at its peak and the largest buffers that live then.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/planner/planner.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Memory of one stage, by arena: bytes by class at the moment of the peak, whose lines sum to
// arena + external exactly, and the most of each class, each at its own moment.
std::vector<v1::StageMemory> ReportMemory(const v1::Program& program);

// Of the arena that takes the largest part of its limit; without limits, of the largest on a
// device.
v1::Binding ReportBinding(const Evaluated& evaluated, const TierLimits& limits,
                          int64_t device_memory_bytes);

}  // namespace terrace
