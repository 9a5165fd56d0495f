// How sums over rows are cut so that their value does not depend on the number of threads: into
// blocks of rows fixed by the shape alone. Each block's partial sums lie in the workspace; they are
// added in block order.
//
// Read by op_cost.cc (how large the workspace is) and by the CPU kernels (what lies in it).
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace terrace::kernels {

// Enough blocks for as many threads, few enough that partial sums are small beside the rows.
inline constexpr int64_t kMaxRowBlocks = 64;
inline constexpr int64_t kMinRowsPerBlock = 32;

struct RowBlocks {
  int64_t rows_per_block = 0;
  int64_t count = 0;
};

inline RowBlocks SplitRows(int64_t rows) {
  const int64_t even = (rows + kMaxRowBlocks - 1) / kMaxRowBlocks;
  const int64_t rows_per_block = std::max(even, kMinRowsPerBlock);
  return {rows_per_block, (rows + rows_per_block - 1) / rows_per_block};
}

// Floats from one block's partial sums to the next, so that each starts on its own cache line.
inline int64_t PartialStride(int64_t columns) { return (columns + 15) / 16 * 16; }

// Scratch for `vectors` sums of `columns` columns over `rows` rows.
inline int64_t RowSumBytes(int64_t rows, int64_t columns, int64_t vectors) {
  return SplitRows(rows).count * PartialStride(columns) * vectors * int64_t{sizeof(float)};
}

// Elements of one block of a sum over a whole tensor; a block's sum is one double in the workspace.
inline constexpr int64_t kSumBlockElements = 32768;

inline int64_t SumBlocks(int64_t elements) {
  return (elements + kSumBlockElements - 1) / kSumBlockElements;
}

}  // namespace terrace::kernels
