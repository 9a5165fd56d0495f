// What the attention kernels on matrix instructions share: tiles of bf16 or f16 (T says which) in
// shared memory and the products of 16 rows with them.
//
// A block has four warps; a warp owns 16 rows of one side. kDim is the head size, padded with zeros
// to 64, 96 or 128. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/warp.cuh"

namespace terrace::kernels::cuda {

inline constexpr int kMmaThreads = 128;
inline constexpr int kMmaRows = 64;     // of a block's own side
inline constexpr int kMmaKeys = 64;     // of the other side, where that is keys
inline constexpr int kMmaQueries = 32;  // where it is queries
// Eight elements behind each row: fragments of eight rows lie in different banks.
TERRACE_HOST_DEVICE constexpr int TileStride(int dim) { return dim + 8; }
constexpr int64_t TileBytes(int rows, int dim) {
  return int64_t{rows} * TileStride(dim) * int64_t{sizeof(BF16)};
}

inline LaunchShape MmaShape(const AttentionShape& s, int64_t heads, int64_t shared_bytes) {
  return {.grid_x = std::min(AttentionTasks(s, heads, kMmaRows), kMaxGridX),
          .threads = kMmaThreads,
          .shared_bytes = shared_bytes};
}

// Rows [first, first + kRows) of a head; zeros from `end` on and beyond the head. They are there
// for everybody after FinishCopies of all threads and a barrier.
template <typename T, int kRows, int kDim>
__device__ void LoadTile(const Operand& from, bool wide, int64_t base, int64_t column,
                         int64_t first, int64_t end, int64_t head_dim, const Tile& to) {
  constexpr int kPackSize = static_cast<int>(kPack), kPacks = kDim / kPackSize;
  static_assert(kRows * kPacks % kMmaThreads == 0);
  // Not unrolled: copies wait for nothing, and addresses would take registers that sums need.
#pragma unroll 1
  for (int n = 0; n < kRows * kPacks / kMmaThreads; ++n) {
    const int i = n * kMmaThreads + static_cast<int>(threadIdx.x);
    const int row = i / kPacks, c = i % kPacks * kPackSize;
    BF16* place = to.data + row * to.stride + c;
    const bool exists = first + row < end && c < head_dim;
    if (wide) {
      const int64_t at = (base + first + row) * from.row_stride + column + c;
      StartCopy(place, static_cast<const BF16*>(from.data) + (exists ? at : 0), exists);
      continue;
    }
    Wide pack = {{0, 0, 0, 0}};
    if (exists) {
      float values[kPackSize];
#pragma unroll
      for (int e = 0; e < kPackSize; ++e) {
        values[e] = c + e < head_dim ? from.Load(base + first + row, column + c + e) : 0.0f;
      }
      for (int w = 0; w < 4; ++w) pack.words[w] = PackPair<T>(values[2 * w], values[2 * w + 1]);
    }
    *reinterpret_cast<Wide*>(place) = pack;
  }
}

// out (16 x 8 kTiles) += the warp's 16 rows of `a` times the rows of `b`, over kDim columns.
template <typename T, int kDim, int kTiles>
__device__ void MultiplyByRows(const Tile& a, int a_row, const Tile& b, float (*out)[4]) {
#pragma unroll
  for (int c = 0; c < kDim; c += 16) {
    uint32_t fragment[4];
    LoadA(a, a_row, c, fragment);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t other[4];
      LoadTwoB(b, n * 8, c, other);
      MultiplyFragments<T>(fragment, other, out[n]);
      MultiplyFragments<T>(fragment, other + 2, out[n + 1]);
    }
  }
}

// out (16 x kDim) += weights (16 x 8 kTiles, rounded to T) times the rows of `b`.
template <typename T, int kDim, int kTiles>
__device__ void MultiplyWeights(const float (*weights)[4], const Tile& b, float (*out)[4]) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    // What a lane holds of two neighbouring tiles of C is what it must bring of A.
    const float* low = weights[2 * k];
    const float* high = weights[2 * k + 1];
    const uint32_t fragment[4] = {PackPair<T>(low[0], low[1]), PackPair<T>(low[2], low[3]),
                                  PackPair<T>(high[0], high[1]), PackPair<T>(high[2], high[3])};
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t other[4];
      LoadTwoBRows(b, k * 16, n * 8, other);
      MultiplyFragments<T>(fragment, other, out[n]);
      MultiplyFragments<T>(fragment, other + 2, out[n + 1]);
    }
  }
}

// Stores 16 x kDim sums; a lane holds rows g and g + 8.
template <int kDim>
__device__ void StoreRows(const Operand& to, int64_t base, int64_t column, int64_t first,
                          int64_t end, int64_t head_dim, bool add, const float (*sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t row = first + g + e / 2 * 8, c = n * 8 + 2 * t + e % 2;
      if (row >= end || c >= head_dim) continue;
      const float old = add ? to.Load(base + row, column + c) : 0.0f;
      to.Store(base + row, column + c, old + sums[n][e]);
    }
  }
}

// The sum (or the largest) over the four lanes that hold a row.
template <typename Combine>
__device__ float RowReduce(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return combine(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

}  // namespace terrace::kernels::cuda
