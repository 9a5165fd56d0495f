// The second half of a sum over rows: adds the partial sums of row_blocks.h in block order.
//
// Internal to kernels/cpu. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace::kernels::cpu {

// Partial sums of `columns` columns; block b's start at data + b * block_stride.
struct PartialSums {
  const float* data = nullptr;
  int64_t blocks = 0;
  int64_t block_stride = 0;
  int64_t columns = 0;
};

// out[c] = (+=, when accumulate) the sum of the blocks' column c.
void AddPartialSums(const PartialSums& partials, bool accumulate, int threads, float* out);

}  // namespace terrace::kernels::cpu
