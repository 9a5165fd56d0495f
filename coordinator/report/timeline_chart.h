// The schedule of a step as a picture: for each stage what it computes, communicates, copies and
// computes on the host, over the simulated time, coloured by phase and numbered by micro-batch.
// Instructions of one micro-batch and phase that follow each other are one piece; of many, pieces
// too small to be seen are one as well.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coordinator/prepare/prepare.h"
#include "coordinator/report/measured_step.h"
#include "proto/drawing/svg.h"

namespace terrace {

// Of many stages only some are drawn, and it says so. Pictures that are compared show the same
// time: `seconds_shown` where it is more than they need.
Picture TimelineChart(const Prepared& prepared, double seconds_shown = 0);
Picture MeasuredTimelineChart(const Prepared& prepared, const MeasuredStep& measured,
                              double seconds_shown);

// What the streams of one kind do in a phase, all of them together.
struct BusyTime {
  std::string name;  // "compute, forward"
  double simulated_seconds = 0, measured_seconds = 0;
};
std::vector<BusyTime> BusyTimes(const Prepared& prepared, const MeasuredStep& measured);

}  // namespace terrace
