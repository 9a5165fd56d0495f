// The API of clients (JobService in proto/v1/job.proto) on top of Control.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "coordinator/control/control.h"

namespace grpc {
class Service;
}

namespace terrace {

// `observe` is called at the end of each unary call with its name, status and seconds, from any
// thread. `control` is borrowed.
std::unique_ptr<grpc::Service> MakeJobService(
    Control& control,
    std::function<void(std::string_view method, std::string_view code, double seconds)> observe);

}  // namespace terrace
