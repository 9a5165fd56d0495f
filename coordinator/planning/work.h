// What a planner process does: one answer to one request, before which it may tell how far it is.
//
// Pure but for the files that a spec names. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "proto/job_roots.h"
#include "proto/v1/planning.pb.h"

namespace terrace {

// How far an evaluation is.
using TellProgress = std::function<void(const v1::EvaluationProgress&)>;

v1::PlannerAnswer AnswerOf(const v1::PlannerRequest& request, const TellProgress& tell = {},
                           const JobRoots& roots = {});

// Answers on standard output the requests that come on standard input, until that is closed. The
// process dies with the thread that started it, and is what the system kills first when memory runs
// out. Specs may name paths below `roots` only, where there are any.
absl::Status AnswerRequests(const JobRoots& roots);

}  // namespace terrace
