// The API of clients (JobService in proto/v1/job.proto, HoldService in proto/v1/hold.proto) on top
// of Control.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "coordinator/control/control.h"
#include "coordinator/server/rpc.h"

namespace grpc {
class Service;
}

namespace terrace {

// `observe` is called at the end of each unary call with its name, status and seconds, from any
// thread. `control` is borrowed.
std::unique_ptr<grpc::Service> MakeJobService(Control& control, RpcObserver observe);

// Jobs that are submitted held.
std::unique_ptr<grpc::Service> MakeHoldService(Control& control, RpcObserver observe);

}  // namespace terrace
