// The gradient of the first step of a job, with every operation computed in double by the judge of
// the kernels (tests/conformance/op_reference.h): what gradients in f32 are held against, on one
// rank or on many.
//
// It is the program of one rank that runs, instruction by instruction; beside each f32 in its arena
// stands the double that it was rounded from. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/system/in_process_job.h"

namespace terrace {

using ExactTensors = std::map<std::string, std::vector<double>>;

// Of the mean loss, before clipping, by tensor. UNIMPLEMENTED for a program of several ranks, of
// other tiers than the device, or that computes in other types than f32.
absl::StatusOr<ExactTensors> ExactGradients(const JobData& data, const v1::Program& program);

}  // namespace terrace
