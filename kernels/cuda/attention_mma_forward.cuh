// Attention forward on bf16 or f16 matrix instructions, accumulated in f32: a block takes 64
// queries and walks over tiles of 64 keys (Dao 2023, arXiv 2307.08691).
// Included by one file for each of the two types: they compile side by side. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_terms.cuh"

namespace terrace::kernels::cuda {
namespace {

constexpr int kKeyTiles = kMmaKeys / 8;

// Scores become probabilities relative to the new maximum; what was summed is scaled to it. Without
// kMasked every query sees every key of the tile.
template <int kDim, bool kMasked>
__device__ void UpdateSoftmax(const AttentionShape& s, int64_t first, int64_t key_tile,
                              float (*scores)[4], Rows<kDim>* rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const float scale = s.scale * kLog2E;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const TileRange seen = s.KeysInTile(first + g + 8 * h, key_tile, kMmaKeys);
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) {
        const bool sees = !kMasked || seen.Holds(n * 8 + 2 * t + e % 2);
        scores[n][e] = sees ? scores[n][e] * scale : -INFINITY;
        top = fmaxf(top, scores[n][e]);
      }
    }
    top = fmaxf(rows->top[h], RowReduce(top, Largest()));
    // A row that has seen no key yet: all its terms are 2^-inf = 0.
    const float reference = top == -INFINITY ? 0.0f : top;
    const float old = FastExp2(rows->top[h] - reference);
    rows->top[h] = top;
    rows->sum[h] *= old;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      rows->o[n][2 * h] *= old;
      rows->o[n][2 * h + 1] *= old;
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) {
        scores[n][e] = FastExp2(scores[n][e] - reference);
        rows->sum[h] += scores[n][e];
      }
    }
  }
}

template <int kDim>
__device__ void FinishRows(const AttentionArguments& a, const AttentionTask& task, int64_t first,
                           Rows<kDim>* rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const AttentionShape s = a.shape.OfSequence(task.sequence);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = RowReduce(rows->sum[h], Plus());
    const int64_t query = first + g + 8 * h;
    if (query >= s.length) continue;
    const RowRange keys = s.KeysOf(query, query + 1);
    if (s.add_queries && keys.begin >= keys.end) continue;  // as it was, to the bit
    const float scale = sum == 0 ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int64_t c = n * 8 + 2 * t + e;
        if (c >= s.head_dim) continue;
        a.o.Store(s.QueryRow(task.sequence, query), task.head * s.head_dim + c,
                  rows->o[n][2 * h + e] * scale);
      }
    }
    if (t != 0) continue;
    a.lse[s.LseAt(task.sequence, task.head, query)] =
        sum == 0 ? -INFINITY : rows->top[h] * kLn2 + logf(sum);
  }
}

// With kTerms the op has terms.
template <typename T, int kDim, bool kTerms>
__device__ void RunTask(const AttentionArguments& a, const AttentionTask& task) {
  const AttentionShape s = a.shape.OfSequence(task.sequence);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  constexpr int kStride = TileStride(kDim);
  BF16* memory = reinterpret_cast<BF16*>(DynamicShared());
  const Tile queries = {memory, kStride}, keys = {memory + kMmaRows * kStride, kStride};
  const Tile values = {memory + (kMmaRows + kMmaKeys) * kStride, kStride};
  const int64_t kv_column = task.head / s.group() * s.head_dim;
  const int64_t query_base = s.QueryRow(task.sequence, 0), key_base = s.KeyRow(task.sequence, 0);
  LoadTile<T, kMmaRows, kDim>(a.q, a.wide, query_base, task.head * s.head_dim, task.first, s.length,
                              s.head_dim, queries);
  const HeadTerms terms = kTerms ? TermsOfHead(s.terms, task.head) : HeadTerms();
  Rows<kDim> rows;
  StartRows(a, task, task.first + warp_row, &rows);
  const RowRange seen = s.KeysOf(task.first, task.first + kMmaRows);
  LoadTile<T, kMmaKeys, kDim>(a.k, a.wide, key_base, kv_column, seen.begin, s.length, s.head_dim,
                              keys);
  // The values of a tile are copied while its scores are computed, the keys of the next one behind
  // that.
  for (int64_t tile = seen.begin; tile < seen.end; tile += kMmaKeys) {
    FinishCopies();
    __syncthreads();  // the keys are there, and the values before have been used
    LoadTile<T, kMmaKeys, kDim>(a.v, a.wide, key_base, kv_column, tile, s.length, s.head_dim,
                                values);
    float scores[kKeyTiles][4] = {};
    MultiplyByRows<T, kDim, kKeyTiles>(queries, warp_row, keys, scores);
    FinishCopies();
    __syncthreads();  // the values are there, and the keys have been used
    if (tile + kMmaKeys < seen.end) {
      LoadTile<T, kMmaKeys, kDim>(a.k, a.wide, key_base, kv_column, tile + kMmaKeys, s.length,
                                  s.head_dim, keys);
    }
    const int64_t first = task.first + warp_row;
    if (kTerms && Changes(terms)) {
      ChangeFragments<kKeyTiles>(
          terms, s.scale, first + s.offset - tile, 1, [](int, int) { return 0.0f; }, scores,
          nullptr);
    }
    if (s.SeesAll(first, first + 16, tile, tile + kMmaKeys)) {
      UpdateSoftmax<kDim, false>(s, first, tile, scores, &rows);
    } else {
      UpdateSoftmax<kDim, true>(s, first, tile, scores, &rows);
    }
    if (kTerms && s.Drops()) {
      const DropoutHead dropout = DropoutOf(s, task.sequence, task.head);
      DropFragments<kKeyTiles>(KeptOfQueries(dropout, first, tile), dropout.scale, scores);
    }
    MultiplyWeights<T, kDim, kKeyTiles>(scores, values, rows.o);
  }
  FinishCopies();  // of a task that sees nothing
  FinishRows(a, task, task.first + warp_row, &rows);
}

// Blocks that shall have room on a multiprocessor at once: the compiler would else spend registers
// on loads ahead, and nobody would be there while a block waits.
template <typename T, int kDim, bool kTerms>
__global__ void __launch_bounds__(kMmaThreads, kDim <= 96 ? 3 : 2)
    ForwardKernel(AttentionArguments a) {
  const int64_t tasks = AttentionTasks(a.shape, a.shape.heads, kMmaRows);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();  // the queries before have been used
    RunTask<T, kDim, kTerms>(a, TaskAt(a.shape, a.shape.heads, kMmaRows, task));
  }
}

template <typename T, int kDim, bool kTerms>
Status LaunchForward(const AttentionArguments& a, const Context& context) {
  const int64_t bytes = TileBytes(kMmaRows + 2 * kMmaKeys, kDim);
  return Launch("attention", ForwardKernel<T, kDim, kTerms>,
                MmaShape(a.shape, a.shape.heads, bytes), context, a);
}

template <typename T, bool kTerms>
Status ByHeadSize(const AttentionArguments& a, const Context& context) {
  if (a.shape.head_dim <= 64) return LaunchForward<T, 64, kTerms>(a, context);
  return a.shape.head_dim <= 96 ? LaunchForward<T, 96, kTerms>(a, context)
                                : LaunchForward<T, 128, kTerms>(a, context);
}

template <typename T>
Status ForwardOf(const AttentionArguments& a, const Context& context) {
  return HasTerms(a.shape.terms) ? ByHeadSize<T, true>(a, context)
                                 : ByHeadSize<T, false>(a, context);
}

}  // namespace
}  // namespace terrace::kernels::cuda
