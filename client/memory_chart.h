// The bytes of one tier over a sequence as an SVG: areas stacked by class, the arena and its limit
// as lines, the phases of the step below.
//
// Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/drawing/svg.h"
#include "proto/report/live_memory.h"

namespace terrace {

// What the colours mean.
Picture ChartLegend();

// `timeline` is that of the sequence.
std::string MemoryChart(const LiveMemory& memory, int sequence, const MemoryTimeline& timeline,
                        v1::Tier tier);

}  // namespace terrace
