// From a chosen layout and its programs to the Plan that people read. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "coordinator/prepare/evaluate.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Memory of one stage on one tier: bytes by class at the moment of the peak; the lines sum to arena
// + external exactly.
v1::StageMemory ReportMemory(const v1::Program& program, const v1::Arena& arena);

// `others` are the layouts that were evaluated and not chosen.
v1::Plan ReportPlan(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                    const Evaluated& chosen, const std::vector<Evaluated>& others);

}  // namespace terrace
