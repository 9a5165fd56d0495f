// Workers taken out of use (DrainService in proto/v1/drain.proto) on top of Control.
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

// `observe` as of MakeJobService. `control` is borrowed.
std::unique_ptr<grpc::Service> MakeDrainService(Control& control, RpcObserver observe);

}  // namespace terrace
