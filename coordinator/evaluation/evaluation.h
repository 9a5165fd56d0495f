// What a job's hardware has room for: the largest micro-batch and sequence, what holds the memory,
// and what each technique that saves memory costs in time, each planned as `terrace plan` plans it.
//
// In parts, the most telling first: the plan itself, the job without techniques, the job with each,
// the largest sizes of the two, the largest sizes of each. Whoever asks may end it between two
// plans or within one; what was found by then is right, and what is missing is marked.
//
// Pure but for what it is given to ask. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "proto/v1/evaluation.pb.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct EvaluationOptions {
  bool brief = false;  // without the largest sizes of each technique
  // Asked before each plan whether there is time for it; may be empty.
  std::function<bool()> goes_on;
  // Asked within a plan, often: false ends it. Only the layout of the plan itself is found in any
  // case. May be empty.
  std::function<bool()> in_time = {};
  // Told what is under way; may be empty.
  std::function<void(const v1::EvaluationProgress&)> tell;
};

// Errors as of Prepare(), but that a job that does not fit is none.
absl::StatusOr<v1::Evaluation> EvaluateJob(const v1::JobSpec& spec, const Budget& budget,
                                           const EvaluationOptions& options);

}  // namespace terrace
