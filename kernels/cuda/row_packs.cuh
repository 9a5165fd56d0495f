// Rows that a block walks over in packs of eight elements, a thread a pack: for kernels that sum
// over a row and then write it.
//
// Which thread takes which elements, and so the order of sums, does not depend on whether packs are
// moved 16 bytes at a time. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/elementwise.cuh"

namespace terrace::kernels::cuda {

// A row's part of an operand: `columns` elements from column `first` of row `row` on.
struct RowPart {
  int64_t row, first, columns;
  bool wide;  // whole packs may be moved 16 bytes at a time
};

// The pack of elements from `column` of the part on; zeros behind its end.
__device__ inline void LoadRowPack(const Operand& from, const RowPart& part, int64_t column,
                                   float* to) {
  if (part.wide && column + kPack <= part.columns) {
    LoadPack(from, part.row * from.row_stride + part.first + column, to);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    to[i] = column + i < part.columns ? from.Load(part.row, part.first + column + i) : 0.0f;
  }
}

__device__ inline void StoreRowPack(const Operand& to, const RowPart& part, int64_t column,
                                    const float* from) {
  if (part.wide && column + kPack <= part.columns) {
    StorePack(to, part.row * to.row_stride + part.first + column, from);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    if (column + i < part.columns) to.Store(part.row, part.first + column + i, from[i]);
  }
}

// The same of a vector of `part.columns` floats that all rows share.
__device__ inline void LoadVectorPack(const float* from, const RowPart& part, int64_t column,
                                      float* to) {
  const Operand vector = {const_cast<float*>(from), 0, false};
  LoadRowPack(vector, {0, 0, part.columns, part.wide}, column, to);
}

// The first column of the thread's packs, and from one of them to the next.
__device__ inline int64_t FirstPack() { return static_cast<int64_t>(threadIdx.x) * kPack; }
__device__ inline int64_t PackStep() { return static_cast<int64_t>(blockDim.x) * kPack; }

// A block for each of `rows` parts, wide enough for `columns` in packs and no wider.
inline LaunchShape RowPackShape(int64_t rows, int64_t columns) {
  LaunchShape shape = RowShape(rows, columns);
  const int64_t warps = DivideUp(DivideUp(columns, kPack), kWarp);
  shape.threads = static_cast<int>(std::clamp<int64_t>(warps, 1, kElementThreads / kWarp)) * kWarp;
  return shape;
}

// Whether rows of all operands, and the vectors that all rows share, allow 16-byte accesses. Any of
// them may be absent.
inline bool AllowsWideRows(std::initializer_list<TensorView> operands,
                           std::initializer_list<const float*> vectors) {
  return std::all_of(operands.begin(), operands.end(),
                     [](const TensorView& view) { return AllowsWide(view, false); }) &&
         std::all_of(vectors.begin(), vectors.end(), [](const float* vector) {
           return reinterpret_cast<uintptr_t>(vector) % 16 == 0;
         });
}

}  // namespace terrace::kernels::cuda
