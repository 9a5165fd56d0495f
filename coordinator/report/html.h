// A plan as a page that a person believes: what was chosen and why, memory over the step against
// the budgets, the schedule, where the time goes, what else was compared. One file without scripts
// or links, for a screen and for paper.
//
// Pure and thread-safe: the same plan gives the same bytes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coordinator/prepare.h"

namespace terrace {

std::string PlanHtml(const Prepared& prepared);

}  // namespace terrace
