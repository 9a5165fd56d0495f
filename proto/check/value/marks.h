// Which micro-batches are in a sum, as one number: micro-batch m is the m-th power of a base,
// modulo the prime 2^61 - 1, and a sum is the sum of those. Different sums have different numbers,
// but for a chance of about 2^-60 for each micro-batch.
//
// Powers, so that a sum of which only the number is known can be moved to later micro-batches: all
// of them by d is a product with the d-th power. With that loops are proved (fixed_point.h).
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace::check {

using Marks = uint64_t;  // below 2^61 - 1

// All counts and micro-batches are at least 0.
Marks MarkOf(int64_t micro_batch);
Marks MarksBelow(int64_t count);  // micro-batches 0 to count - 1, each once
Marks AddMarks(Marks a, Marks b);
Marks SubtractMarks(Marks a, Marks b);
Marks RepeatMarks(Marks marks, uint64_t times);
Marks MoveMarks(Marks marks, int64_t by);       // each to the micro-batch `by` later
Marks SpreadMarks(Marks marks, int64_t count);  // each, and the count - 1 micro-batches behind it

}  // namespace terrace::check
