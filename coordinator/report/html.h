// A plan as a page that a person believes: what was chosen and why, memory over the step against
// the budgets, the schedule, where the time goes, what else was compared. One file without scripts
// or links, for a screen and for paper.
//
// Pure and thread-safe: the same plan gives the same bytes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coordinator/prepare/prepare.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// What a job that runs has measured, to be shown beside its plan.
struct Measured {
  std::string trace;    // of a rank (worker/train/trace.h); empty: it has written none
  v1::RankMemory rank;  // its report of what it holds; empty: it has made none
};
std::string PlanHtml(const Prepared& prepared);
std::string PlanHtml(const Prepared& prepared, const Measured& measured);

}  // namespace terrace
