// A job in short: one row of a list. A list of thousands of jobs is made of these, not of plans.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "proto/v1/job.pb.h"

namespace terrace {

struct JobRow {
  std::string id, name;
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  v1::Reason reason = v1::REASON_NONE;
  std::string message;
  int64_t number = 0;                                                        // of the submission
  int64_t submitted_unix_ms = 0, started_unix_ms = 0, finished_unix_ms = 0;  // 0: not yet
  int64_t resumed_unix_ms = 0;  // the last time; 0: it was never paused
  int64_t step = 0, steps = 0;
  double loss = 0;       // of `step`
  double eval_loss = 0;  // where has_eval
  bool has_eval = false;
  double tokens_per_second = 0, step_seconds = 0;
  uint32_t ranks = 0;  // 0: not planned yet
  int64_t parameters = 0;
  std::string layout;  // "dp 4, tp 2, zero 3": what is not 1 or 0
  std::string precision;
  int64_t starts_unix_ms = 0;  // of one that waits, estimated; 0: not known
  std::string estimate;        // what that rests on, or why it is not known
  int32_t restarts = 0;
};

JobRow RowOf(const v1::Job& job);

}  // namespace terrace
