// The checker's part on how buffers are cut: two operands in one buffer, or an operand and a tensor
// of the manifest, lie apart, are the same bytes, or one lies inside the other. Where they cross
// (queries and keys here, keys and values there), others begin and end where the common piece does.
//
// Nothing goes wrong in memory when they cross otherwise, but no program has a reason for it: it is
// an operand at a wrong offset, which takes the end of one tensor and the start of the next.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/check/instructions.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// REQUIRES: CheckState and CheckInstructions passed.
absl::Status CheckSlices(const v1::Program& program, const std::vector<CheckedSequence>& sequences);

}  // namespace terrace::check
