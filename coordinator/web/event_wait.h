// Waits until a job has newer events than some, for an answer to a request that holds no thread.
//
// On the control loop.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/control/control.h"

namespace terrace {

// Calls `done` once: with OK when there are newer events, or the job has ended, or `wait` is over.
// NOT_FOUND: there is no such job. RESOURCE_EXHAUSTED: too many wait.
void WaitForEvents(Control& control, const std::string& job, int64_t after_sequence,
                   absl::Duration wait, std::function<void(const absl::Status&)> done);

}  // namespace terrace
