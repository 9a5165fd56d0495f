// The streams of workers (WorkerService in proto/v1/worker.proto) on top of Control.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "coordinator/control/control.h"
#include "coordinator/server/call_guard.h"

namespace grpc {
class Service;
}

namespace terrace {

// Not yet written to one worker; beyond it the stream is closed, and the worker connects again and
// reports afresh.
inline constexpr size_t kWorkerBytesQueuedMax = size_t{512} << 20;

// Until when a stream must say who it is, and how many there may be that have not.
inline constexpr absl::Duration kRegisterWithin = absl::Seconds(10);
inline constexpr int kUnregisteredMax = 1024;

// `coordinator_id` tells workers whether they talk to the coordinator they knew. The others are
// borrowed.
std::unique_ptr<grpc::Service> MakeWorkerService(Control& control, const CallGuard& guard,
                                                 std::string coordinator_id);

}  // namespace terrace
