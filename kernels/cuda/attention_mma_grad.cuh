// The gradient of attention on bf16 or f16 matrix instructions, in two sweeps that add nothing
// across blocks: dq by queries, dk and dv by keys. Both compute the probabilities again from the
// log-sum-exp.
// Included by one file for each of the two types: they compile side by side. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_terms.cuh"

namespace terrace::kernels::cuda {
namespace {

constexpr int kKeyTiles = kMmaKeys / 8;
constexpr int kQueryTiles = kMmaQueries / 8;

// lse (in powers of two) and delta of one query; what is never seen gets no weight.
struct Statistics {
  float lse, delta;
};
__device__ Statistics StatisticsOf(const AttentionArguments& a, int64_t sequence, int64_t head,
                                   int64_t query) {
  if (query >= a.shape.length) return {0, 0};
  const int64_t at = a.shape.LseAt(sequence, head, query);
  return {a.lse[at] * kLog2E, a.delta[at]};
}

__device__ float Probability(const AttentionShape& s, float dot, float lse, bool sees) {
  return sees ? FastExp2(dot * (s.scale * kLog2E) - lse) : 0.0f;
}

// Scores and products with dO of a warp's 16 queries from `first` on become ds. Without kMasked
// every query sees every key of the tile.
template <bool kMasked>
__device__ void SlopesOfQueries(const AttentionShape& s, int64_t first, int64_t key_tile,
                                const Statistics* statistics, const float (*dp)[4],
                                float (*scores)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const TileRange seen[2] = {s.KeysInTile(first + g, key_tile, kMmaKeys),
                             s.KeysInTile(first + g + 8, key_tile, kMmaKeys)};
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Statistics& row = statistics[e / 2];
      const bool sees = !kMasked || seen[e / 2].Holds(n * 8 + 2 * t + e % 2);
      const float p = Probability(s, scores[n][e], row.lse, sees);
      scores[n][e] = p * (dp[n][e] - row.delta) * s.scale;
    }
  }
}

template <typename T, int kDim, bool kTerms>
__device__ void QueryTask(const AttentionArguments& a, const AttentionTask& task) {
  const AttentionShape s = a.shape.OfSequence(task.sequence);
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  constexpr int kStride = TileStride(kDim);
  BF16* memory = reinterpret_cast<BF16*>(DynamicShared());
  const Tile queries = {memory, kStride}, outs = {memory + kMmaRows * kStride, kStride};
  const Tile keys = {memory + 2 * kMmaRows * kStride, kStride};
  const Tile values = {memory + (2 * kMmaRows + kMmaKeys) * kStride, kStride};
  const int64_t column = task.head * s.head_dim;
  const int64_t kv_column = task.head / s.group() * s.head_dim;
  const int64_t query_base = s.QueryRow(task.sequence, 0), key_base = s.KeyRow(task.sequence, 0);
  LoadTile<T, kMmaRows, kDim>(a.q, a.wide, query_base, column, task.first, s.length, s.head_dim,
                              queries);
  LoadTile<T, kMmaRows, kDim>(a.d_o, a.wide, query_base, column, task.first, s.length, s.head_dim,
                              outs);
  Statistics statistics[2];
  for (int h = 0; h < 2; ++h) {
    statistics[h] = StatisticsOf(a, task.sequence, task.head, task.first + warp_row + g + 8 * h);
  }
  const HeadTerms terms = kTerms ? TermsOfHead(s.terms, task.head) : HeadTerms();
  float dq[kDim / 8][4] = {};
  const RowRange seen = s.KeysOf(task.first, task.first + kMmaRows);
  const auto load = [&](const Operand& from, int64_t tile, const Tile& to) {
    LoadTile<T, kMmaKeys, kDim>(from, a.wide, key_base, kv_column, tile, s.length, s.head_dim, to);
  };
  load(a.k, seen.begin, keys);
  load(a.v, seen.begin, values);
  for (int64_t tile = seen.begin; tile < seen.end; tile += kMmaKeys) {
    const int64_t next = tile + kMmaKeys;
    FinishCopies();
    __syncthreads();  // keys and values are there
    float scores[kKeyTiles][4] = {}, dp[kKeyTiles][4] = {};
    MultiplyByRows<T, kDim, kKeyTiles>(queries, warp_row, keys, scores);
    MultiplyByRows<T, kDim, kKeyTiles>(outs, warp_row, values, dp);
    __syncthreads();  // the values have been used
    if (next < seen.end) load(a.v, next, values);
    const int64_t first = task.first + warp_row;
    if (kTerms && s.Drops()) {
      const DropoutHead dropout = DropoutOf(s, task.sequence, task.head);
      DropFragments<kKeyTiles>(KeptOfQueries(dropout, first, tile), dropout.scale, dp);
    }
    if (kTerms && Changes(terms)) {
      ChangeFragments<kKeyTiles>(
          terms, s.scale, first + s.offset - tile, 1,
          [&](int, int e) { return statistics[e / 2].delta; }, scores, dp);
    }
    if (s.SeesAll(first, first + 16, tile, tile + kMmaKeys)) {
      SlopesOfQueries<false>(s, first, tile, statistics, dp, scores);
    } else {
      SlopesOfQueries<true>(s, first, tile, statistics, dp, scores);
    }
    MultiplyWeights<T, kDim, kKeyTiles>(scores, keys, dq);
    __syncthreads();  // the keys have been used
    if (next < seen.end) load(a.k, next, keys);
  }
  FinishCopies();  // of a task that sees nothing
  StoreRows<kDim>(a.dq, query_base, column, task.first + warp_row, s.length, s.head_dim,
                  s.add_queries, dq);
}

template <typename T, int kDim, bool kTerms>
__global__ void __launch_bounds__(kMmaThreads, kDim <= 64 ? 3 : 2)
    QueryGradKernel(AttentionArguments a) {
  const int64_t tasks = AttentionTasks(a.shape, a.shape.heads, kMmaRows);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();  // the queries before have been used
    QueryTask<T, kDim, kTerms>(a, TaskAt(a.shape, a.shape.heads, kMmaRows, task));
  }
}

// Transposed scores of the warp's 16 keys from `first_key` on and products with dO become
// probabilities and ds. Without kMasked every query of the tile sees every key.
template <bool kMasked>
__device__ void SlopesOfKeys(const AttentionShape& s, int64_t first_key, int64_t first_query,
                             const Statistics* statistics, float (*p)[4], float (*ds)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const TileRange seen[2] = {s.QueriesInTile(first_key + g, first_query, kMmaQueries),
                             s.QueriesInTile(first_key + g + 8, first_query, kMmaQueries)};
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = n * 8 + 2 * t + e % 2;
      const Statistics query = statistics[column];
      p[n][e] = Probability(s, p[n][e], query.lse, !kMasked || seen[e / 2].Holds(column));
      ds[n][e] = p[n][e] * (ds[n][e] - query.delta) * s.scale;
    }
  }
}

// The transposed scores of one tile of a query head: rows are the warp's keys, columns its queries.
template <typename T, int kDim, bool kTerms>
__device__ void AddQueryTile(const AttentionShape& s, int64_t sequence, int64_t head,
                             const Tile& keys, const Tile& values, const Tile& queries,
                             const Tile& outs, const Statistics* statistics, int64_t first_key,
                             int64_t first_query, float (*dk)[4], float (*dv)[4]) {
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  float p[kQueryTiles][4] = {}, ds[kQueryTiles][4] = {};
  MultiplyByRows<T, kDim, kQueryTiles>(keys, warp_row, queries, p);
  MultiplyByRows<T, kDim, kQueryTiles>(values, warp_row, outs, ds);
  const int64_t key = first_key + warp_row;
  const HeadTerms terms = kTerms ? TermsOfHead(s.terms, head) : HeadTerms();
  uint32_t kept = 0;
  if (kTerms && s.Drops()) {
    kept = KeptOfKeys<kQueryTiles>(DropoutOf(s, sequence, head), key, first_query);
    DropFragments<kQueryTiles>(kept, s.dropout.scale, ds);
  }
  if (kTerms && Changes(terms)) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    ChangeFragments<kQueryTiles>(
        terms, s.scale, first_query + s.offset - key, -1,
        [&](int n, int e) { return statistics[n * 8 + 2 * t + e % 2].delta; }, p, ds);
  }
  if (s.SeesAll(first_query, first_query + kMmaQueries, key, key + 16)) {
    SlopesOfKeys<false>(s, key, first_query, statistics, p, ds);
  } else {
    SlopesOfKeys<true>(s, key, first_query, statistics, p, ds);
  }
  if (kTerms && s.Drops()) DropFragments<kQueryTiles>(kept, s.dropout.scale, p);
  MultiplyWeights<T, kDim, kQueryTiles>(p, outs, dv);
  MultiplyWeights<T, kDim, kQueryTiles>(ds, queries, dk);
}

// One of two places for a tile of queries: the next is copied while the other is used.
struct QueryTile {
  Tile queries, outs;
  Statistics* statistics;
};

// The keys of one kv head: all query heads that share it, in order.
template <typename T, int kDim, bool kTerms>
__device__ void KeyTask(const AttentionArguments& a, const AttentionTask& task) {
  const AttentionShape s = a.shape.OfSequence(task.sequence);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  constexpr int kStride = TileStride(kDim);
  __shared__ Statistics statistics[2 * kMmaQueries];
  BF16* memory = reinterpret_cast<BF16*>(DynamicShared());
  const Tile keys = {memory, kStride}, values = {memory + kMmaRows * kStride, kStride};
  const auto place = [&](bool second) -> QueryTile {
    BF16* start = memory + (2 * kMmaRows + (second ? 2 * kMmaQueries : 0)) * kStride;
    return {{start, kStride},
            {start + kMmaQueries * kStride, kStride},
            statistics + (second ? kMmaQueries : 0)};
  };
  const int64_t column = task.head * s.head_dim;
  const int64_t query_base = s.QueryRow(task.sequence, 0), key_base = s.KeyRow(task.sequence, 0);
  const auto load = [&](int64_t head, int64_t tile, const QueryTile& to) {
    const int64_t query_column = head * s.head_dim;
    LoadTile<T, kMmaQueries, kDim>(a.q, a.wide, query_base, query_column, tile, s.length,
                                   s.head_dim, to.queries);
    LoadTile<T, kMmaQueries, kDim>(a.d_o, a.wide, query_base, query_column, tile, s.length,
                                   s.head_dim, to.outs);
    if (threadIdx.x < kMmaQueries) {
      to.statistics[threadIdx.x] = StatisticsOf(a, task.sequence, head, tile + threadIdx.x);
    }
  };
  LoadTile<T, kMmaRows, kDim>(a.k, a.wide, key_base, column, task.first, s.length, s.head_dim,
                              keys);
  LoadTile<T, kMmaRows, kDim>(a.v, a.wide, key_base, column, task.first, s.length, s.head_dim,
                              values);
  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  const RowRange seen = s.QueriesOf(task.first, task.first + kMmaRows);
  const int64_t end_head = seen.begin < seen.end ? (task.head + 1) * s.group() : 0;
  int64_t head = task.head * s.group(), tile = seen.begin;
  bool second = false;
  if (head < end_head) load(head, tile, place(second));
  while (head < end_head) {
    FinishCopies();
    __syncthreads();  // this tile is there, and the one before has been used
    const int64_t now = tile, now_head = head;
    const QueryTile here = place(second);
    second = !second;
    tile += kMmaQueries;
    if (tile >= seen.end) {
      tile = seen.begin;
      ++head;
    }
    if (head < end_head) load(head, tile, place(second));
    AddQueryTile<T, kDim, kTerms>(s, task.sequence, now_head, keys, values, here.queries, here.outs,
                                  here.statistics, task.first, now, dk, dv);
  }
  FinishCopies();  // of a task that nobody sees
  StoreRows<kDim>(a.dk, key_base, column, task.first + warp_row, s.length, s.head_dim, s.add_keys,
                  dk);
  StoreRows<kDim>(a.dv, key_base, column, task.first + warp_row, s.length, s.head_dim, s.add_keys,
                  dv);
}

template <typename T, int kDim, bool kTerms>
__global__ void __launch_bounds__(kMmaThreads, kDim <= 64 ? 3 : 2)
    KeyGradKernel(AttentionArguments a) {
  const int64_t tasks = AttentionTasks(a.shape, a.shape.kv_heads, kMmaRows);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();  // the keys before have been used
    KeyTask<T, kDim, kTerms>(a, KeyTaskAt(a.shape, a.shape.kv_heads, kMmaRows, task));
  }
}

template <typename T, int kDim, bool kTerms>
Status LaunchGrad(const AttentionArguments& a, const Context& context) {
  const int64_t query_bytes = TileBytes(2 * kMmaRows + 2 * kMmaKeys, kDim);
  const int64_t key_bytes = TileBytes(2 * kMmaRows + 4 * kMmaQueries, kDim);
  Status status = Launch("attention_grad", QueryGradKernel<T, kDim, kTerms>,
                         MmaShape(a.shape, a.shape.heads, query_bytes), context, a);
  if (!status.ok()) return status;
  return Launch("attention_grad", KeyGradKernel<T, kDim, kTerms>,
                MmaShape(a.shape, a.shape.kv_heads, key_bytes), context, a);
}

template <typename T, bool kTerms>
Status ByHeadSize(const AttentionArguments& a, const Context& context) {
  if (a.shape.head_dim <= 64) return LaunchGrad<T, 64, kTerms>(a, context);
  return a.shape.head_dim <= 96 ? LaunchGrad<T, 96, kTerms>(a, context)
                                : LaunchGrad<T, 128, kTerms>(a, context);
}

template <typename T>
Status GradOf(const AttentionArguments& a, const Context& context) {
  return HasTerms(a.shape.terms) ? ByHeadSize<T, true>(a, context)
                                 : ByHeadSize<T, false>(a, context);
}

}  // namespace
}  // namespace terrace::kernels::cuda
