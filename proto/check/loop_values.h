// What iterations touch: of values that each iteration makes anew, which of the slots; of arrays,
// which row. Internal to proto/check/loops.cc.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// Buffers used in turn are alike, are touched in one way and in one loop, and each iteration
// touches values of few iterations before and after; rows of arrays are those of the micro-batch.
absl::Status CheckLoopValues(const v1::Program& program, const v1::Sequence& sequence);

// How far before or behind iteration 0 the values lie that its operands name, at most.
int64_t FarthestSlot(const v1::Sequence& sequence);

// How many values each iteration makes anew, at most.
int64_t SlottedValues(const v1::Sequence& sequence, const v1::Loop& loop);

}  // namespace terrace::check
