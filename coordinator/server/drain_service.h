// Workers taken out of use (DrainService in proto/v1/drain.proto) on top of Control.
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

// Both are borrowed.
std::unique_ptr<grpc::Service> MakeDrainService(Control& control, const CallGuard& guard);

}  // namespace terrace
