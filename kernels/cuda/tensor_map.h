// Descriptions of heads in device memory that the copy engine of sm_90 (TMA) follows: made on the
// host through the driver, handed to kernels by value.
//
// The tensor is [sequence][row][head][column]; a box is `box_columns` of one head of `box_rows`
// rows of one sequence. What of a box lies outside becomes zeros: columns from the head size on,
// rows from `rows` on. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/kernel.h"

namespace terrace::kernels::cuda {

struct HeadsInMemory {
  const void* data = nullptr;  // bf16 or f16, 16-byte aligned: the first row of the first sequence
  int64_t head_dim = 0, heads = 0, rows = 0, sequences = 0;
  int64_t row_bytes = 0, sequence_bytes = 0;  // from one to the next, whole 16 bytes
};

// Rows of the box have 64 or 128 bytes; their 16-byte chunks change places by that swizzle.
Status DescribeHeads(const HeadsInMemory& heads, int box_rows, int box_columns, CUtensorMap* map);

}  // namespace terrace::kernels::cuda
