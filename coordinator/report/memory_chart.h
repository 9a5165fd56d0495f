// The memory of each stage and tier over the step as pictures: areas stacked by class on what lies
// outside the arena, the budget and the arena as lines, the peak marked.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "coordinator/prepare/prepare.h"
#include "proto/drawing/svg.h"

namespace terrace {

// One picture a row of charts, the legend first. Of many stages only some are drawn: the first,
// the last, the fullest and some between.
std::vector<Picture> MemoryCharts(const Prepared& prepared);

}  // namespace terrace
