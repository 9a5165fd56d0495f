// The part of a plan's text that says what its ranks hold at the peak: for one stage a line a class
// with a bar, for several a line a stage, so that they can be compared. Budgets stand beside what
// is used.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/v1/plan.pb.h"

namespace terrace {

std::string PlanMemoryText(const v1::Plan& plan);

}  // namespace terrace
