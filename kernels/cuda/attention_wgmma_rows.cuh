// The rows of a consumer of attention on sm_90a: their largest scores, sums and outputs while tiles
// of keys go by (the online softmax of Dao 2023, arXiv 2307.08691).
//
// kKeys is what a tile has of keys, T the type of tiles. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_wgmma.cuh"

namespace terrace::kernels::cuda {

// Scores become probabilities relative to the new maximum; `old` is what was summed before must be
// multiplied with. Without kMasked every query sees every key of the tile.
template <int kDim, int kKeys, bool kMasked>
__device__ __forceinline__ void UpdateSoftmax(const AttentionShape& s, int first, int key_tile,
                                              float (*scores)[4], Rows<kDim>* rows, float* old) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const float scale = s.scale * kLog2E;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (kMasked) {
      const TileRange seen = s.KeysInTile(first + g + 8 * h, key_tile, kKeys);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          if (!seen.Holds(n * 8 + 2 * t + e % 2)) scores[n][e] = -INFINITY;
        }
      }
    }
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      top = fmaxf(top, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    top = fmaxf(rows->top[h], top * scale);
    // A row that has seen no key yet: all its terms are 2^-inf = 0.
    const float reference = top == -INFINITY ? 0.0f : top;
    old[h] = FastExp2(rows->top[h] - reference);
    rows->top[h] = top;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) {
        scores[n][e] = FastExp2(scores[n][e] * scale - reference);
        sum += scores[n][e];
      }
    }
    rows->sum[h] = rows->sum[h] * old[h] + sum;
  }
}

template <int kDim, int kKeys>
__device__ __forceinline__ void Softmax(const AttentionShape& s, int first, int key_tile,
                                        float (*scores)[4], Rows<kDim>* rows, float* old) {
  if (s.SeesAll(first, first + 16, key_tile, key_tile + kKeys)) {
    UpdateSoftmax<kDim, kKeys, false>(s, first, key_tile, scores, rows, old);
  } else {
    UpdateSoftmax<kDim, kKeys, true>(s, first, key_tile, scores, rows, old);
  }
}

template <int kDim>
__device__ __forceinline__ void ScaleRows(const float* old, Rows<kDim>* rows) {
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) rows->o[n][e] *= old[e / 2];
  }
}

template <typename T, int kDim>
__device__ __forceinline__ void FinishRows(const AttentionArguments& a, bool pairs,
                                           const AttentionTask& task, int64_t first,
                                           const Rows<kDim>& rows) {
  const AttentionShape& s = a.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int64_t query = first + g + 8 * h;
    if (query >= s.length) continue;
    const RowRange keys = s.KeysOf(query, query + 1);
    if (s.add_queries && keys.begin >= keys.end) continue;  // as it was, to the bit
    const float scale = sum == 0 ? 0.0f : 1.0f / sum;
    const int64_t row = s.QueryRow(task.sequence, query), column = task.head * s.head_dim + 2 * t;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const float low = rows.o[n][2 * h] * scale, high = rows.o[n][2 * h + 1] * scale;
      if (n * 8 >= s.head_dim) continue;  // heads are whole eights
      if (pairs) {
        auto* to = static_cast<T*>(a.o.data) + row * a.o.row_stride + column + n * 8;
        *reinterpret_cast<uint32_t*>(to) = PackPair<T>(low, high);
      } else {
        a.o.Store(row, column + n * 8, low);
        a.o.Store(row, column + n * 8 + 1, high);
      }
    }
    if (t != 0) continue;
    a.lse[s.LseAt(task.sequence, task.head, query)] =
        sum == 0 ? -INFINITY : rows.top[h] * kLn2 + logf(sum);
  }
}

}  // namespace terrace::kernels::cuda
