// Calls about the queue (HoldService in proto/v1/hold.proto, QueueService in proto/v1/queue.proto)
// on top of Control.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "coordinator/control/control.h"
#include "coordinator/server/call_guard.h"

namespace grpc {
class Service;
}

namespace terrace {

// Jobs that are submitted held. Both are borrowed.
std::unique_ptr<grpc::Service> MakeHoldService(Control& control, const CallGuard& guard);

// Jobs that wait for others, and what users have had. Both are borrowed.
std::unique_ptr<grpc::Service> MakeQueueService(Control& control, const CallGuard& guard);

}  // namespace terrace
