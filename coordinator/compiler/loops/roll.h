// Writes the repeated part of a sequence as a loop.
//
// A step is compiled with few of its micro-batches, straight. From some instruction on the list
// then repeats, micro-batch for micro-batch: the same operations with the same waits on values that
// take each other's places. That part becomes the body of a loop (modulo scheduling calls it the
// kernel; Lam 1988, "Software pipelining"), executed as often as the whole step needs; what stands
// before and behind it is prologue and epilogue. Values that every iteration makes anew share as
// many buffers as are in use at a time.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace::compiler {

// How much of a step is compiled.
struct RollShape {
  int64_t micro_batches = 0;  // how many the straight list has; 0: nothing is rolled
  int64_t an_iteration = 1;   // after how many the list repeats itself
};

// The shapes to try for a layout whose step may loop (CompiledMicroBatches in layout/rules.h), the
// smallest first. A step repeats itself as its order of passes does; where host buffers are used in
// turn (staging.h), it may do so only after as many times as there are buffers in a ring.
std::vector<RollShape> RollShapes(const v1::Layout& layout);

// In: an emitted program without offsets, whose sequences that train have `shape.micro_batches`
// each. Out: loops in them, so that they have `program->rules().micro_batches()`, which is some
// iterations more. FAILED_PRECONDITION, and the program is as it was, where a sequence does not
// repeat itself; the message says where.
absl::Status Roll(const RollShape& shape, v1::Program* program);

}  // namespace terrace::compiler
