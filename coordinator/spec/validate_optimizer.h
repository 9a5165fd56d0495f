// The rules that train.optimizer and train.schedule hold together. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/spec/reader.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// Tells the reader of each problem: keys that the chosen optimizer or schedule does not read, and
// values that do not go together.
void ValidateOptimizer(SpecReader& reader, v1::JobSpec* job);

}  // namespace terrace
