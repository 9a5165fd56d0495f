// How long one instruction takes on a time model when nothing else is in its way: FLOPs over rate
// plus bytes over bandwidth plus an overhead; collectives by the formulas of ring algorithms,
// transfers by the link, copies by the rate between their tiers, host computation by the host's
// memory. What copies of both directions at once cost is duplex.h's.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// INVALID_ARGUMENT when an operand or an op does not decode or they do not fit each other.
absl::StatusOr<double> InstructionSeconds(const v1::Program& program,
                                          const v1::Instruction& instruction,
                                          const v1::HardwareProfile& profile);

}  // namespace terrace
