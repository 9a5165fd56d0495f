// The checker's fifth part: what a step of training must do. Only the optimizer writes weights, in
// "train" each element exactly once, with the moments that belong to it and a gradient that was
// summed over the data-parallel ranks exactly once after its last contribution; every micro-batch
// is loaded exactly once.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/check/instructions.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// Of any sequence: weights are written by the optimizer of "train" alone.
absl::Status CheckWeightWrites(const v1::Program& program, const CheckedSequence& sequence);

// Of "train". REQUIRES: CheckConflicts passed: list order is then the order of all accesses that
// conflict.
absl::Status CheckTraining(const v1::Program& program, const CheckedSequence& train);

}  // namespace terrace::check
