// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch_shape.h"

#include <algorithm>

namespace terrace::kernels::cuda {
namespace {

// Enough to fill the largest device several times over, few enough that partial sums stay small.
constexpr int64_t kMaxRowBlocks = 256;
constexpr int64_t kMinRowsPerBlock = 64;

}  // namespace

LaunchShape ElementShape(int64_t rows, int64_t columns) {
  const int64_t packs = rows * DivideUp(columns, kPack);
  return {.grid_x = std::clamp<int64_t>(DivideUp(packs, kElementThreads), 1, kMaxGridX),
          .threads = kElementThreads};
}

LaunchShape RowShape(int64_t rows, int64_t columns) {
  const int threads = columns <= 256 ? kWarp : columns <= 2048 ? 128 : 256;
  return {.grid_x = std::clamp<int64_t>(rows, 1, kMaxGridX), .threads = threads};
}

ColumnCut CutRows(int64_t rows) {
  const int64_t rows_per_block = std::max(DivideUp(rows, kMaxRowBlocks), kMinRowsPerBlock);
  return {rows_per_block, DivideUp(rows, rows_per_block)};
}

LaunchShape ColumnShape(int64_t rows, int64_t columns) {
  return {.grid_x = std::clamp<int64_t>(DivideUp(columns, kColumnTile), 1, kMaxGridX),
          .grid_y = CutRows(rows).blocks,
          .threads = kWarp * kColumnLanes};
}

}  // namespace terrace::kernels::cuda
