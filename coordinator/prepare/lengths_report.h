// How long the steps of a job with buckets take, one length at a time: the line of the plan that a
// job of one length does not need.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/v1/hardware.pb.h"

namespace terrace {

// "steps by tokens of a sample: 256 0.011 s, 1024 0.045 s; 0.028 s on average where each length has
// as many samples". Empty without buckets. How samples are distributed is known to the ranks alone,
// who read them.
absl::StatusOr<std::string> StepsByLength(const Evaluated& evaluated,
                                          const v1::HardwareProfile& profile);

}  // namespace terrace
