// `terrace evaluate` at a coordinator (EvaluationService in proto/v1/evaluation.proto) on top of
// Control: one evaluation at a time, so that plans of jobs find a planner free.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "coordinator/control/control.h"

namespace grpc {
class Service;
}

namespace terrace {

// An evaluation ends after at most `seconds_max` with what it found. `control` is borrowed.
std::unique_ptr<grpc::Service> MakeEvaluationService(Control& control, double seconds_max);

}  // namespace terrace
