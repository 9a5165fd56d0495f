// The gradient of attention on bf16 matrix instructions, in two sweeps that add nothing across
// blocks: dq by queries, dk and dv by keys. Both compute the probabilities again from the
// log-sum-exp.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_mma.cuh"

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
  return sees ? exp2f(dot * (s.scale * kLog2E) - lse) : 0.0f;
}

template <int kDim>
__device__ void QueryTask(const AttentionArguments& a, const AttentionTask& task) {
  const AttentionShape& s = a.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  constexpr int kStride = TileStride(kDim);
  BF16* memory = reinterpret_cast<BF16*>(DynamicShared());
  const Tile queries = {memory, kStride}, outs = {memory + kMmaRows * kStride, kStride};
  const Tile keys = {memory + 2 * kMmaRows * kStride, kStride};
  const Tile values = {memory + (2 * kMmaRows + kMmaKeys) * kStride, kStride};
  const int64_t column = task.head * s.head_dim;
  const int64_t kv_column = task.head / s.group() * s.head_dim;
  const int64_t query_base = s.QueryRow(task.sequence, 0), key_base = s.KeyRow(task.sequence, 0);
  LoadTile<kMmaRows, kDim>(a.q, a.wide, query_base, column, task.first, s.length, s.head_dim,
                           queries);
  LoadTile<kMmaRows, kDim>(a.d_o, a.wide, query_base, column, task.first, s.length, s.head_dim,
                           outs);
  Statistics statistics[2];
  for (int h = 0; h < 2; ++h) {
    statistics[h] = StatisticsOf(a, task.sequence, task.head, task.first + warp_row + g + 8 * h);
  }
  float dq[kDim / 8][4] = {};
  const RowRange seen = s.KeysOf(task.first, task.first + kMmaRows);
  for (int64_t tile = seen.begin; tile < seen.end; tile += kMmaKeys) {
    __syncthreads();  // the tile before has been used
    LoadTile<kMmaKeys, kDim>(a.k, a.wide, key_base, kv_column, tile, s.length, s.head_dim, keys);
    LoadTile<kMmaKeys, kDim>(a.v, a.wide, key_base, kv_column, tile, s.length, s.head_dim, values);
    __syncthreads();
    float scores[kKeyTiles][4] = {}, dp[kKeyTiles][4] = {};
    MultiplyByRows<kDim, kKeyTiles>(queries, warp_row, keys, scores);
    MultiplyByRows<kDim, kKeyTiles>(outs, warp_row, values, dp);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Statistics& row = statistics[e / 2];
        const int64_t query = task.first + warp_row + g + e / 2 * 8;
        const int64_t key = tile + n * 8 + 2 * t + e % 2;
        const float p = Probability(s, scores[n][e], row.lse, s.Sees(query, key));
        scores[n][e] = p * (dp[n][e] - row.delta) * s.scale;
      }
    }
    MultiplyWeights<kDim, kKeyTiles>(scores, keys, dq);
  }
  StoreRows<kDim>(a.dq, query_base, column, task.first + warp_row, s.length, s.head_dim,
                  s.add_queries, dq);
}

template <int kDim>
__global__ void __launch_bounds__(kMmaThreads) QueryGradKernel(AttentionArguments a) {
  const int64_t tasks = AttentionTasks(a.shape, a.shape.heads, kMmaRows);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();  // the queries before have been used
    QueryTask<kDim>(a, TaskAt(a.shape, a.shape.heads, kMmaRows, task));
  }
}

// The transposed scores of one tile: rows are the warp's keys, columns its queries.
template <int kDim>
__device__ void AddQueryTile(const AttentionShape& s, const Tile& keys, const Tile& values,
                             const Tile& queries, const Tile& outs, const Statistics* statistics,
                             int64_t first_key, int64_t first_query, float (*dk)[4],
                             float (*dv)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  float p[kQueryTiles][4] = {}, ds[kQueryTiles][4] = {};
  MultiplyByRows<kDim, kQueryTiles>(keys, warp_row, queries, p);
  MultiplyByRows<kDim, kQueryTiles>(values, warp_row, outs, ds);
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = n * 8 + 2 * t + e % 2;
      const Statistics query = statistics[column];
      const int64_t key = first_key + warp_row + g + e / 2 * 8;
      p[n][e] = Probability(s, p[n][e], query.lse, s.Sees(first_query + column, key));
      ds[n][e] = p[n][e] * (ds[n][e] - query.delta) * s.scale;
    }
  }
  MultiplyWeights<kDim, kQueryTiles>(p, outs, dv);
  MultiplyWeights<kDim, kQueryTiles>(ds, queries, dk);
}

// The keys of one kv head: all query heads that share it, in order.
template <int kDim>
__device__ void KeyTask(const AttentionArguments& a, const AttentionTask& task) {
  const AttentionShape& s = a.shape;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  constexpr int kStride = TileStride(kDim);
  __shared__ Statistics statistics[kMmaQueries];
  BF16* memory = reinterpret_cast<BF16*>(DynamicShared());
  const Tile keys = {memory, kStride}, values = {memory + kMmaRows * kStride, kStride};
  const Tile queries = {memory + 2 * kMmaRows * kStride, kStride};
  const Tile outs = {memory + (2 * kMmaRows + kMmaQueries) * kStride, kStride};
  const int64_t column = task.head * s.head_dim;
  const int64_t query_base = s.QueryRow(task.sequence, 0), key_base = s.KeyRow(task.sequence, 0);
  LoadTile<kMmaRows, kDim>(a.k, a.wide, key_base, column, task.first, s.length, s.head_dim, keys);
  LoadTile<kMmaRows, kDim>(a.v, a.wide, key_base, column, task.first, s.length, s.head_dim, values);
  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  const RowRange seen = s.QueriesOf(task.first, task.first + kMmaRows);
  for (int64_t head = task.head * s.group(); head < (task.head + 1) * s.group(); ++head) {
    for (int64_t tile = seen.begin; tile < seen.end; tile += kMmaQueries) {
      __syncthreads();  // the tile before has been used
      LoadTile<kMmaQueries, kDim>(a.q, a.wide, query_base, head * s.head_dim, tile, s.length,
                                  s.head_dim, queries);
      LoadTile<kMmaQueries, kDim>(a.d_o, a.wide, query_base, head * s.head_dim, tile, s.length,
                                  s.head_dim, outs);
      if (threadIdx.x < kMmaQueries) {
        statistics[threadIdx.x] = StatisticsOf(a, task.sequence, head, tile + threadIdx.x);
      }
      __syncthreads();
      AddQueryTile<kDim>(s, keys, values, queries, outs, statistics, task.first, tile, dk, dv);
    }
  }
  StoreRows<kDim>(a.dk, key_base, column, task.first + warp_row, s.length, s.head_dim, s.add_keys,
                  dk);
  StoreRows<kDim>(a.dv, key_base, column, task.first + warp_row, s.length, s.head_dim, s.add_keys,
                  dv);
}

template <int kDim>
__global__ void __launch_bounds__(kMmaThreads) KeyGradKernel(AttentionArguments a) {
  const int64_t tasks = AttentionTasks(a.shape, a.shape.kv_heads, kMmaRows);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();  // the keys before have been used
    KeyTask<kDim>(a, TaskAt(a.shape, a.shape.kv_heads, kMmaRows, task));
  }
}

template <int kDim>
Status LaunchGrad(const AttentionArguments& a, const Context& context) {
  const int64_t query_bytes = TileBytes(2 * kMmaRows + 2 * kMmaKeys, kDim);
  const int64_t key_bytes = TileBytes(2 * kMmaRows + 2 * kMmaQueries, kDim);
  Status status = Launch("attention_grad", QueryGradKernel<kDim>,
                         MmaShape(a.shape, a.shape.heads, query_bytes), context, a);
  if (!status.ok()) return status;
  return Launch("attention_grad", KeyGradKernel<kDim>,
                MmaShape(a.shape, a.shape.kv_heads, key_bytes), context, a);
}

}  // namespace

Status AttentionGradMma(const AttentionArguments& a, const Context& context) {
  if (a.shape.head_dim <= 64) return LaunchGrad<64>(a, context);
  return a.shape.head_dim <= 96 ? LaunchGrad<96>(a, context) : LaunchGrad<128>(a, context);
}

}  // namespace terrace::kernels::cuda
