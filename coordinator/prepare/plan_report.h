// From a chosen layout and its programs to the Plan that people read. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "coordinator/prepare/memory_report.h"
#include "coordinator/prepare/search.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// `others` are the layouts that were evaluated and not chosen.
v1::Plan ReportPlan(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                    const Evaluated& chosen, const std::vector<Evaluated>& others);

// How many layouts were compared, and of those that were not compiled the smaller ones.
void ReportSearch(const Searched& searched, size_t compiled, v1::Plan* plan);

}  // namespace terrace
