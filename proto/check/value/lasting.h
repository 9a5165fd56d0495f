// The checker's rule for what lasts from step to step and is no state: weights in fewer bits beside
// their masters. A step may find there what "restore" makes of the state, since that runs before
// the first step and whenever the state was read; so it must leave the same of the state that it
// has updated.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/value/flow.h"
#include "proto/check/value/ranges.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// By buffer: bytes beyond the state that some sequence that trains reads before it writes them (any
// value but kNone).
std::vector<ByteMap> FoundByTraining(const v1::Program& program,
                                     const std::vector<CheckedSequence>& sequences);

// `restored`: what "restore" leaves; `flow`: what `train` does that began there.
absl::Status CheckRenewed(const v1::Program& program, const CheckedSequence& train,
                          const std::vector<ByteMap>& found, const Flow& restored,
                          const Flow& flow);

}  // namespace terrace::check
