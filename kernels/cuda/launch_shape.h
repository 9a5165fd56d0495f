// How many blocks and threads a kernel starts with, for any size: host arithmetic alone.
//
// Grids are never larger than the hardware's limits (2^31 - 1 blocks in x, 65535 in y); kernels
// that may get fewer blocks than pieces walk on by gridDim. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace terrace::kernels::cuda {

inline constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMaxGridY = 65535;
inline constexpr int kWarp = 32;

// Elements that a thread of an elementwise kernel takes: 16 bytes of bf16.
inline constexpr int64_t kPack = 8;
inline constexpr int kElementThreads = 256;

struct LaunchShape {
  int64_t grid_x = 1, grid_y = 1;
  int threads = 1;
  int64_t shared_bytes = 0;  // dynamic
};

TERRACE_HOST_DEVICE constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One thread for each pack of each row, rows not sharing packs.
LaunchShape ElementShape(int64_t rows, int64_t columns);

// One block a row, wide enough for `columns` and no wider.
LaunchShape RowShape(int64_t rows, int64_t columns);

// Sums over rows: a grid of column tiles (x) and blocks of rows (y). The cut is fixed by the shape
// alone, so that sums have one order on every device.
inline constexpr int kColumnTile = kWarp * kPack;  // columns of a block, a pack of them a thread
inline constexpr int kColumnLanes = 8;             // threads that share a column
struct ColumnCut {
  int64_t rows_per_block = 0;
  int64_t blocks = 0;
};
ColumnCut CutRows(int64_t rows);
LaunchShape ColumnShape(int64_t rows, int64_t columns);

}  // namespace terrace::kernels::cuda
