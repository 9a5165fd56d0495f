// The gradient of attention in f32, in two sweeps that add nothing across blocks: dq by queries, dk
// and dv by keys. Both compute the probabilities again from the log-sum-exp.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_f32.cuh"
#include "kernels/cuda/attention_terms.cuh"

namespace terrace::kernels::cuda {
namespace {

// p as the values' sum has it, and the gradient by the score before its scale, of one query and one
// key.
struct Slopes {
  float p, ds;
};

// One head of one sequence, and what is done to its scores.
struct GradHead {
  __device__ GradHead(const AttentionShape& s, int64_t sequence_index, int64_t of_head)
      : sequence(sequence_index), head(of_head), terms(TermsOfHead(s.terms, of_head)) {
    if (s.Drops()) dropout = DropoutOf(s, sequence, head);
  }
  int64_t sequence, head;
  HeadTerms terms;
  DropoutHead dropout = {};
};

template <bool kTerms>
__device__ Slopes SlopesOf(const AttentionArguments& a, const AttentionShape& s, const GradHead& h,
                           float dot, float dp, int64_t query, int64_t key) {
  if (!s.Sees(query, key)) return {0, 0};
  const int64_t at = s.LseAt(h.sequence, h.head, query);
  if constexpr (!kTerms) {
    const float p = exp2f(dot * (s.scale * kLog2E) - a.lse[at] * kLog2E);
    return {p, p * (dp - a.delta[at]) * s.scale};
  }
  const ChangedScore changed = ChangeScore(h.terms, dot * s.scale, query + s.offset - key);
  const float kept = s.Drops() ? KeptScale(h.dropout, query, key) : 1.0f;
  const float p = exp2f((changed.score - a.lse[at]) * kLog2E);
  return {p * kept, p * (dp * kept - a.delta[at]) * (changed.slope * s.scale)};
}

// sums[i] += sum over the tile's rows j of the lane j's `weight` times row j, dimension lane + 32
// i.
template <int kChunks>
__device__ void AddWeighted(float weight, const float* rows, int64_t stride, int64_t d,
                            float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int j = 0; j < kWarp; ++j) {
    const float w = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int c = lane + i * kWarp;
      if (c < d) sums[i] += w * rows[j * stride + c];
    }
  }
}

template <int kChunks>
__device__ void StoreRow(const Operand& to, int64_t row, int64_t column, int64_t d, bool add,
                         const float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t c = lane + i * kWarp;
    if (c >= d) continue;
    to.Store(row, column + c, add ? to.Load(row, column + c) + sums[i] : sums[i]);
  }
}

template <int kChunks, bool kTerms>
__device__ void QueryTask(const AttentionArguments& a, const AttentionTask& task) {
  const AttentionShape s = a.shape.OfSequence(task.sequence);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = static_cast<int>(threadIdx.x) / kWarp * kRowsEach;
  const int64_t d = s.head_dim, kv_head = task.head / s.group();
  const GradHead grad_head(s, task.sequence, task.head);
  float* queries = reinterpret_cast<float*>(DynamicShared());
  float* outs = queries + kF32Rows * d;
  float* keys = outs + kF32Rows * d;
  float* values = keys + kF32Tile * (d + 1);
  const int64_t query_base = s.QueryRow(task.sequence, 0), column = task.head * d;
  LoadRows(a.q, query_base, column, task.first, s.length, kF32Rows, d, d, queries);
  LoadRows(a.d_o, query_base, column, task.first, s.length, kF32Rows, d, d, outs);
  float dq[kRowsEach][kChunks] = {};
  const RowRange seen = s.KeysOf(task.first, task.first + kF32Rows);
  for (int64_t tile = seen.begin; tile < seen.end; tile += kF32Tile) {
    __syncthreads();  // the tile before has been used
    const int64_t row = s.KeyRow(task.sequence, 0);
    LoadRows(a.k, row, kv_head * d, tile, s.length, kF32Tile, d, d + 1, keys);
    LoadRows(a.v, row, kv_head * d, tile, s.length, kF32Tile, d, d + 1, values);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      const int64_t query = task.first + first_row + r;
      const float dot = Dot(queries + (first_row + r) * d, keys + lane * (d + 1), d);
      const float dp = Dot(outs + (first_row + r) * d, values + lane * (d + 1), d);
      const Slopes slopes = SlopesOf<kTerms>(a, s, grad_head, dot, dp, query, tile + lane);
      AddWeighted<kChunks>(slopes.ds, keys, d + 1, d, dq[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    const int64_t query = task.first + first_row + r;
    if (query >= s.length) continue;
    StoreRow<kChunks>(a.dq, query_base + query, column, d, s.add_queries, dq[r]);
  }
}

template <int kChunks, bool kTerms>
__global__ void __launch_bounds__(kF32Threads) QueryGradKernel(AttentionArguments a) {
  const int64_t tasks = AttentionTasks(a.shape, a.shape.heads, kF32Rows);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();  // the queries before have been used
    QueryTask<kChunks, kTerms>(a, TaskAt(a.shape, a.shape.heads, kF32Rows, task));
  }
}

// The keys of one kv head: all query heads that share it, in order.
template <int kChunks, bool kTerms>
__device__ void KeyTask(const AttentionArguments& a, const AttentionTask& task) {
  const AttentionShape s = a.shape.OfSequence(task.sequence);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = static_cast<int>(threadIdx.x) / kWarp * kRowsEach;
  const int64_t d = s.head_dim, column = task.head * d;
  float* keys = reinterpret_cast<float*>(DynamicShared());
  float* values = keys + kF32Rows * d;
  float* queries = values + kF32Rows * d;
  float* outs = queries + kF32Tile * (d + 1);
  const int64_t key_base = s.KeyRow(task.sequence, 0), query_base = s.QueryRow(task.sequence, 0);
  LoadRows(a.k, key_base, column, task.first, s.length, kF32Rows, d, d, keys);
  LoadRows(a.v, key_base, column, task.first, s.length, kF32Rows, d, d, values);
  float dk[kRowsEach][kChunks] = {}, dv[kRowsEach][kChunks] = {};
  const RowRange seen = s.QueriesOf(task.first, task.first + kF32Rows);
  for (int64_t head = task.head * s.group(); head < (task.head + 1) * s.group(); ++head) {
    const GradHead grad_head(s, task.sequence, head);
    for (int64_t tile = seen.begin; tile < seen.end; tile += kF32Tile) {
      __syncthreads();  // the tile before has been used
      LoadRows(a.q, query_base, head * d, tile, s.length, kF32Tile, d, d + 1, queries);
      LoadRows(a.d_o, query_base, head * d, tile, s.length, kF32Tile, d, d + 1, outs);
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kRowsEach; ++r) {
        const int64_t key = task.first + first_row + r, query = tile + lane;
        const float dot = Dot(keys + (first_row + r) * d, queries + lane * (d + 1), d);
        const float dp = Dot(values + (first_row + r) * d, outs + lane * (d + 1), d);
        const Slopes slopes = SlopesOf<kTerms>(a, s, grad_head, dot, dp, query, key);
        AddWeighted<kChunks>(slopes.p, outs, d + 1, d, dv[r]);
        AddWeighted<kChunks>(slopes.ds, queries, d + 1, d, dk[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    const int64_t key = task.first + first_row + r;
    if (key >= s.length) continue;
    StoreRow<kChunks>(a.dk, key_base + key, column, d, s.add_keys, dk[r]);
    StoreRow<kChunks>(a.dv, key_base + key, column, d, s.add_keys, dv[r]);
  }
}

template <int kChunks, bool kTerms>
__global__ void __launch_bounds__(kF32Threads) KeyGradKernel(AttentionArguments a) {
  const int64_t tasks = AttentionTasks(a.shape, a.shape.kv_heads, kF32Rows);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();  // the keys before have been used
    KeyTask<kChunks, kTerms>(a, KeyTaskAt(a.shape, a.shape.kv_heads, kF32Rows, task));
  }
}

template <int kChunks, bool kTerms>
Status LaunchGrad(const AttentionArguments& a, const Context& context) {
  const int64_t d = a.shape.head_dim;
  const int64_t floats = 2 * kF32Rows * d + 2 * kF32Tile * (d + 1);
  Status status = Launch("attention_grad", QueryGradKernel<kChunks, kTerms>,
                         F32Shape(a.shape, a.shape.heads, floats), context, a);
  if (!status.ok()) return status;
  return Launch("attention_grad", KeyGradKernel<kChunks, kTerms>,
                F32Shape(a.shape, a.shape.kv_heads, floats), context, a);
}

template <bool kTerms>
Status ByHeadSize(const AttentionArguments& a, const Context& context) {
  const int64_t d = a.shape.head_dim;
  if (d <= 64) return LaunchGrad<2, kTerms>(a, context);
  return d <= 128 ? LaunchGrad<4, kTerms>(a, context) : LaunchGrad<8, kTerms>(a, context);
}

}  // namespace

Status AttentionGradF32(const AttentionArguments& a, const Context& context) {
  return HasTerms(a.shape.terms) ? ByHeadSize<true>(a, context) : ByHeadSize<false>(a, context);
}

}  // namespace terrace::kernels::cuda
