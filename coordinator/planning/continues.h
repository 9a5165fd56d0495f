// Whether a job may go on from what lies in its checkpoint directory: before it is stored, where
// the coordinator sees that directory. Its rank 0 looks again, and at every byte.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// FAILED_PRECONDITION with all that differs when the newest checkpoint whose manifest is whole is
// of a job whose numbers this one cannot continue. OK where there is none, where it cannot be read,
// and for jobs that do not ask (checkpoint.resume: always, never).
absl::Status CheckContinues(const v1::JobSpec& spec);

}  // namespace terrace
