// The checker's fourth part: the state manifest. Every range lies in a persistent buffer, the
// ranges of a tensor cover it exactly once, no two share memory; initialisers, rope tables and ties
// name what exists.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// REQUIRES: CheckStructure passed.
absl::Status CheckState(const v1::Program& program);

}  // namespace terrace::check
