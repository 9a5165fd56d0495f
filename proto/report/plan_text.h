// A plan as the text that `terrace plan` prints, in 80 columns: layout, model, memory by tier and
// class, time, the binding constraint, the alternatives with what speaks against each. Words that
// are longer than a line, as paths may be, are not broken. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/v1/plan.pb.h"

namespace terrace {

std::string PlanText(const v1::Plan& plan);

// Of a what-if plan, two sentences: between which times a step is expected, and the rate that it
// hangs on most; empty for others.
std::string UncertaintyText(const v1::Plan& plan);

}  // namespace terrace
