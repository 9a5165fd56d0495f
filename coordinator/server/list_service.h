// Lists of jobs page by page (ListService in proto/v1/list.proto) on top of Control.
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
std::unique_ptr<grpc::Service> MakeListService(Control& control, const CallGuard& guard);

}  // namespace terrace
