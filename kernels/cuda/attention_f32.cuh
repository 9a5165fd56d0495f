// What the f32 attention kernels share: how a block is cut, and rows in shared memory.
//
// A block of four warps takes 16 rows of one side (queries forward and for dq, keys for dk and dv),
// a warp four of them, and walks over tiles of 32 rows of the other side, a lane one of them. Rows
// that lanes read side by side lie d + 1 floats apart, so that they meet in no bank (d is even in
// practice). Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/warp.cuh"

namespace terrace::kernels::cuda {

inline constexpr int kF32Threads = 128;
inline constexpr int kRowsEach = 4;  // of a warp
inline constexpr int kF32Rows = kF32Threads / kWarp * kRowsEach;
inline constexpr int kF32Tile = kWarp;

// One block a task, with that many floats of shared memory.
inline LaunchShape F32Shape(const AttentionShape& s, int64_t heads, int64_t floats) {
  return {.grid_x = std::min(AttentionTasks(s, heads, kF32Rows), kMaxGridX),
          .threads = kF32Threads,
          .shared_bytes = floats * int64_t{sizeof(float)}};
}

// Rows [first, first + count) of a head to shared memory, zeros from `end` on. `base` is the row of
// the piece's first token.
__device__ inline void LoadRows(const Operand& from, int64_t base, int64_t column, int64_t first,
                                int64_t end, int count, int64_t d, int64_t stride, float* to) {
  const int elements = count * static_cast<int>(d);
  for (int i = static_cast<int>(threadIdx.x); i < elements; i += kF32Threads) {
    const int row = i / static_cast<int>(d), c = i % static_cast<int>(d);
    to[row * stride + c] = first + row < end ? from.Load(base + first + row, column + c) : 0.0f;
  }
}

__device__ inline float Dot(const float* a, const float* b, int64_t d) {
  float sum = 0;
  for (int64_t c = 0; c < d; ++c) sum += a[c] * b[c];
  return sum;
}

}  // namespace terrace::kernels::cuda
