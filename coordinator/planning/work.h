// What a planner process does: one answer to one request.
//
// Pure but for the files that a spec names. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/v1/planning.pb.h"

namespace terrace {

v1::PlannerAnswer AnswerOf(const v1::PlannerRequest& request);

// Answers on standard output the request that comes on standard input. The process dies with the
// thread that started it, and is what the system kills first when memory runs out.
absl::Status AnswerRequest();

}  // namespace terrace
