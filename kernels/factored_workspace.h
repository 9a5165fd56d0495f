// What lies in the workspace of kUpdateFactored on a CPU rank: partial sums of columns, what a row
// and what a column multiplies a gradient or a moment by, and of each row two sums of squares. And
// how its decays are read.
//
// Read by kernels/op_cost.cc (how large) and kernels/cpu/update_factored.cc (where). Thread-safe:
// no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/row_blocks.h"

namespace terrace::kernels {

// 1 - decay. f32 has seven digits of a decay near 1 and only three of what 0.9999 lacks of it: the
// decimal of seven digits is the one that was meant.
inline double OneMinusDecay(float decay) { return std::round((1.0 - decay) * 1e7) * 1e-7; }

struct FactoredScratch {
  static constexpr int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  FactoredScratch(int64_t rows, int64_t columns)
      : partial_bytes(RoundUp(RowSumBytes(rows, columns, 1))),
        row_bytes(RoundUp(rows * int64_t{sizeof(float)})),
        column_bytes(RoundUp(columns * int64_t{sizeof(float)})),
        sum_bytes(RoundUp(rows * int64_t{sizeof(double)})),
        // Factors of gradients and, of kCame, of moments.
        bytes(partial_bytes + 2 * row_bytes + 2 * column_bytes + 2 * sum_bytes) {}

  int64_t partial_bytes = 0;
  int64_t row_bytes = 0;
  int64_t column_bytes = 0;
  int64_t sum_bytes = 0;
  int64_t bytes = 0;
};

}  // namespace terrace::kernels
