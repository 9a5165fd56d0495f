// How a job leaves a worker that is drained (proto/v1/drain.proto).
//
// Pure: the time is an argument. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/v1/drain.pb.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct DrainAction {
  enum class How { kStays, kAfterCheckpoint, kAtOnce };
  How how = How::kStays;
  std::string why;  // "worker node-2 is drained (kernel update)"; empty: it stays
};

// `job` has ranks on the drained worker. A job that saves no checkpoints stays until the deadline:
// it would begin again.
DrainAction DrainActionOf(const v1::Job& job, const v1::Drain& drain, int64_t unix_ms);

// Names the state of a drained worker: "draining" while jobs are there, then "drained".
std::string_view DrainedStateName(bool has_jobs);

// What a list of workers says of it.
std::string RemarkOf(const v1::Drain& drain);

}  // namespace terrace
