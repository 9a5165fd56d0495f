// What the two sweeps of attention's gradient on sm_90a share: statistics of rows, the slopes of
// scores, sums that become rows in memory, and the tensors that are copied.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_wgmma.cuh"

namespace terrace::kernels::cuda {

// Stores 16 x kDim sums of the warp's rows from `first` on, times `scale`; a lane holds rows g and
// g + 8.
struct RowsInMemory {
  Operand to;
  bool pairs, add;  // add: to what is there
  int64_t base, column, end, head_dim;
};
template <typename T, int kDim>
__device__ __forceinline__ void StoreScaledRows(const RowsInMemory& rows, int64_t first,
                                                float scale, const float (*sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t row = first + g + 8 * h;
    if (row >= rows.end) continue;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int64_t c = rows.column + n * 8 + 2 * t;
      if (n * 8 >= rows.head_dim) continue;  // heads are whole eights
      float low = sums[n][2 * h] * scale, high = sums[n][2 * h + 1] * scale;
      if (rows.add) {
        low += rows.to.Load(rows.base + row, c);
        high += rows.to.Load(rows.base + row, c + 1);
      }
      if (rows.pairs) {
        auto* to = static_cast<T*>(rows.to.data) + (rows.base + row) * rows.to.row_stride + c;
        *reinterpret_cast<uint32_t*>(to) = PackPair<T>(low, high);
      } else {
        rows.to.Store(rows.base + row, c, low);
        rows.to.Store(rows.base + row, c + 1, high);
      }
    }
  }
}

template <int kTiles>
__device__ __forceinline__ void SetZero(float (*sums)[4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[n][e] = 0;
  }
}

// Of a row of queries: its log-sum-exp in powers of two and its sum of do * o; nothing of what is
// not there.
struct RowStatistics {
  float lse, delta;
};
__device__ __forceinline__ RowStatistics StatisticsOfRow(const AttentionArguments& a,
                                                         int64_t sequence, int64_t head,
                                                         int64_t query) {
  if (query >= a.shape.length) return {0, 0};
  const int64_t at = a.shape.LseAt(sequence, head, query);
  return {a.lse[at] * kLog2E, a.delta[at]};
}

// Scores and products with do become the scores' slopes, but for the scale. Without kMasked every
// query sees every key of the tile.
template <int kKeys, bool kMasked>
__device__ __forceinline__ void SlopesOfQueries(const AttentionShape& s, int first, int key_tile,
                                                const RowStatistics* statistics,
                                                const float (*dp)[4], float (*scores)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const float scale = s.scale * kLog2E;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    TileRange seen = {0, kKeys};
    if constexpr (kMasked) seen = s.KeysInTile(first + g + 8 * h, key_tile, kKeys);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) {
        const float p = FastExp2(scores[n][e] * scale - statistics[h].lse);
        const bool sees = !kMasked || seen.Holds(n * 8 + 2 * t + e % 2);
        scores[n][e] = sees ? p * (dp[n][e] - statistics[h].delta) : 0.0f;
      }
    }
  }
}

// Transposed scores of the warp's 16 keys become probabilities. Without kMasked every query of the
// tile sees every key.
template <int kQueries, bool kMasked>
__device__ __forceinline__ void Probabilities(const AttentionShape& s, int first_key,
                                              int first_query, const RowStatistics* statistics,
                                              float (*p)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const float scale = s.scale * kLog2E;
  TileRange seen[2] = {{0, kQueries}, {0, kQueries}};
  if constexpr (kMasked) {
    seen[0] = s.QueriesInTile(first_key + g, first_query, kQueries);
    seen[1] = s.QueriesInTile(first_key + g + 8, first_query, kQueries);
  }
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
    const int column = n * 8 + 2 * t;
    const float lse[2] = {statistics[column].lse, statistics[column + 1].lse};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool sees = !kMasked || seen[e / 2].Holds(column + e % 2);
      p[n][e] = sees ? FastExp2(p[n][e] * scale - lse[e % 2]) : 0.0f;
    }
  }
}

// Transposed products with do become the scores' slopes, but for the scale.
template <int kQueries>
__device__ __forceinline__ void SlopesOfKeys(const RowStatistics* statistics, const float (*p)[4],
                                             float (*dp)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
    const int column = n * 8 + 2 * t;
    const float delta[2] = {statistics[column].delta, statistics[column + 1].delta};
#pragma unroll
    for (int e = 0; e < 4; ++e) dp[n][e] = p[n][e] * (dp[n][e] - delta[e % 2]);
  }
}

struct GradMaps {
  CUtensorMap q, k, v, d_o;
};
inline Status DescribeGrad(const AttentionArguments& a, int query_rows, int key_rows, int columns,
                           GradMaps* maps) {
  const AttentionShape& s = a.shape;
  Status status = DescribeQueries(s, a.q, query_rows, columns, &maps->q);
  if (status.ok()) status = DescribeQueries(s, a.d_o, query_rows, columns, &maps->d_o);
  if (status.ok()) status = DescribeKeys(s, a.k, key_rows, columns, &maps->k);
  return status.ok() ? DescribeKeys(s, a.v, key_rows, columns, &maps->v) : status;
}

}  // namespace terrace::kernels::cuda
