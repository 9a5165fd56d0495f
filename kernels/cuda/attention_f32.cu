// Attention forward in f32: a warp takes four queries, its lanes the keys of a tile. Scores never
// leave registers; softmax is updated tile by tile (Dao 2023, arXiv 2307.08691).
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_f32.cuh"
#include "kernels/cuda/attention_terms.cuh"

namespace terrace::kernels::cuda {
namespace {

// What a warp holds of one query; dimension lane + 32 i in o[i].
template <int kChunks>
struct QueryState {
  float top, sum;
  float o[kChunks];
};

template <int kChunks>
__device__ void StartQuery(const AttentionArguments& a, const AttentionTask& task, int64_t query,
                           QueryState<kChunks>* state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const AttentionShape s = a.shape.OfSequence(task.sequence);
  state->top = -INFINITY;
  state->sum = 0;
  const bool continues = s.add_queries && query < s.length;
  if (continues) {
    state->top = a.lse[s.LseAt(task.sequence, task.head, query)] * kLog2E;
    state->sum = state->top == -INFINITY ? 0.0f : 1.0f;
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t c = lane + i * kWarp;
    state->o[i] = continues && c < s.head_dim
                      ? a.o.Load(s.QueryRow(task.sequence, query), task.head * s.head_dim + c)
                      : 0.0f;
  }
}

// One tile of keys for one query; `score` is that of the lane's key, in powers of two, and `kept`
// what its element of the softmax is multiplied by.
template <int kChunks>
__device__ void AddTile(float score, float kept, const float* values, int64_t head_dim,
                        QueryState<kChunks>* state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float tile_top = score;
  for (int step = kWarp / 2; step > 0; step /= 2) {
    tile_top = fmaxf(tile_top, __shfl_xor_sync(0xffffffffu, tile_top, step));
  }
  const float top = fmaxf(state->top, tile_top);
  if (top == -INFINITY) return;  // no key seen yet; the same in all lanes
  const float p = exp2f(score - top);
  const float old = exp2f(state->top - top);
  float sum = p;
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  state->sum = state->sum * old + sum;
  const float weight = p * kept;
  state->top = top;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) state->o[i] *= old;
  for (int j = 0; j < kWarp; ++j) {
    const float p_j = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int c = lane + i * kWarp;
      if (c < head_dim) state->o[i] += p_j * values[j * head_dim + c];
    }
  }
}

template <int kChunks>
__device__ void FinishQuery(const AttentionArguments& a, const AttentionTask& task, int64_t query,
                            const QueryState<kChunks>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const AttentionShape s = a.shape.OfSequence(task.sequence);
  if (query >= s.length) return;
  const RowRange keys = s.KeysOf(query, query + 1);
  if (s.add_queries && keys.begin >= keys.end) return;  // as it was, to the bit
  const float scale = state.sum == 0 ? 0.0f : 1.0f / state.sum;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t c = lane + i * kWarp;
    if (c >= s.head_dim) continue;
    a.o.Store(s.QueryRow(task.sequence, query), task.head * s.head_dim + c, state.o[i] * scale);
  }
  if (lane != 0) return;
  a.lse[s.LseAt(task.sequence, task.head, query)] =
      state.sum == 0 ? -INFINITY : state.top * kLn2 + logf(state.sum);
}

template <int kChunks, bool kTerms>
__device__ void RunTask(const AttentionArguments& a, const AttentionTask& task) {
  const AttentionShape s = a.shape.OfSequence(task.sequence);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = static_cast<int>(threadIdx.x) / kWarp * kRowsEach;
  const int64_t d = s.head_dim, kv_head = task.head / s.group();
  const HeadTerms terms = TermsOfHead(s.terms, task.head);
  const DropoutHead dropout = s.Drops() ? DropoutOf(s, task.sequence, task.head) : DropoutHead();
  float* queries = reinterpret_cast<float*>(DynamicShared());
  float* keys = queries + kF32Rows * d;
  float* values = keys + kF32Tile * (d + 1);
  LoadRows(a.q, s.QueryRow(task.sequence, 0), task.head * d, task.first, s.length, kF32Rows, d, d,
           queries);
  QueryState<kChunks> states[kRowsEach];
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) StartQuery(a, task, task.first + first_row + r, &states[r]);
  const RowRange seen = s.KeysOf(task.first, task.first + kF32Rows);
  for (int64_t tile = seen.begin; tile < seen.end; tile += kF32Tile) {
    __syncthreads();  // the tile before has been used
    const int64_t row = s.KeyRow(task.sequence, 0);
    LoadRows(a.k, row, kv_head * d, tile, s.length, kF32Tile, d, d + 1, keys);
    LoadRows(a.v, row, kv_head * d, tile, s.length, kF32Tile, d, d, values);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      const int64_t query = task.first + first_row + r;
      const float dot = Dot(queries + (first_row + r) * d, keys + lane * (d + 1), d);
      const bool sees = s.Sees(query, tile + lane);
      float score = dot * (s.scale * kLog2E), kept = 1;
      if constexpr (kTerms) {
        const int64_t distance = query + s.offset - tile - lane;
        score = ChangeScore(terms, dot * s.scale, distance).score * kLog2E;
        if (s.Drops() && sees) kept = KeptScale(dropout, query, tile + lane);
      }
      AddTile(sees ? score : -INFINITY, kept, values, d, &states[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    FinishQuery(a, task, task.first + first_row + r, states[r]);
  }
}

template <int kChunks, bool kTerms>
__global__ void __launch_bounds__(kF32Threads) ForwardKernel(AttentionArguments a) {
  const int64_t tasks = AttentionTasks(a.shape, a.shape.heads, kF32Rows);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();  // the queries before have been used
    RunTask<kChunks, kTerms>(a, TaskAt(a.shape, a.shape.heads, kF32Rows, task));
  }
}

template <bool kTerms>
auto KernelFor(int64_t head_dim) {
  if (head_dim <= 64) return ForwardKernel<2, kTerms>;
  return head_dim <= 128 ? ForwardKernel<4, kTerms> : ForwardKernel<8, kTerms>;
}

}  // namespace

Status AttentionF32(const AttentionArguments& a, const Context& context) {
  const int64_t d = a.shape.head_dim;
  const LaunchShape shape = F32Shape(a.shape, a.shape.heads, kF32Rows * d + kF32Tile * (2 * d + 1));
  const auto kernel = HasTerms(a.shape.terms) ? KernelFor<true>(d) : KernelFor<false>(d);
  return Launch("attention", kernel, shape, context, a);
}

}  // namespace terrace::kernels::cuda
