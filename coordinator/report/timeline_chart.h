// The schedule of a step as a picture: for each stage what it computes, communicates, copies and
// computes on the host, over the simulated time, coloured by phase and numbered by micro-batch.
// Instructions of one micro-batch and phase that follow each other are one piece; of many, pieces
// too small to be seen are one as well.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/prepare.h"
#include "proto/drawing/svg.h"

namespace terrace {

// Of many stages only some are drawn, and it says so.
Picture TimelineChart(const Prepared& prepared);

}  // namespace terrace
