// A plan as one SVG file: memory, schedule, where the time goes, alternatives, below each other.
//
// Pure and thread-safe: the same plan gives the same bytes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coordinator/prepare/prepare.h"

namespace terrace {

// "7.6 B parameters, 8 ranks, 1.24 s a step, 61.0 GiB of 79.6 GiB on the device".
std::string PlanWords(const v1::Plan& plan);
// The smallest budget that a stage has on its device; 0: none.
int64_t DeviceLimit(const v1::Plan& plan);

std::string PlanSvg(const Prepared& prepared);

}  // namespace terrace
