// A job in short: one row of a list. A list of thousands of jobs is made of these, not of plans.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "proto/v1/job.pb.h"
#include "proto/v1/list.pb.h"

namespace terrace {

v1::JobSummary SummaryOf(const v1::Job& job);

}  // namespace terrace
