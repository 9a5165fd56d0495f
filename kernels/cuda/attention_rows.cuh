// What a lane of attention on matrix instructions holds of its rows of queries while tiles of keys
// go by: the online softmax of Dao 2023 (arXiv 2307.08691).
//
// kDim is the head size, padded. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/warp.cuh"

namespace terrace::kernels::cuda {

// A lane's two rows of queries, g and g + 8 of its warp's. Tops are in powers of two.
template <int kDim>
struct Rows {
  float top[2], sum[2];  // sum: this lane's part
  float o[kDim / 8][4];
};

template <int kDim>
__device__ __forceinline__ void StartRows(const AttentionArguments& a, const AttentionTask& task,
                                          int64_t first, Rows<kDim>* rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const AttentionShape& s = a.shape;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t query = first + g + 8 * h;
    const bool continues = s.add_queries && query < s.length;
    rows->top[h] = continues ? a.lse[s.LseAt(task.sequence, task.head, query)] * kLog2E : -INFINITY;
    rows->sum[h] = t == 0 && rows->top[h] != -INFINITY ? 1.0f : 0.0f;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int64_t c = n * 8 + 2 * t + e;
        rows->o[n][2 * h + e] =
            continues && c < s.head_dim
                ? a.o.Load(s.QueryRow(task.sequence, query), task.head * s.head_dim + c)
                : 0.0f;
      }
    }
  }
}

}  // namespace terrace::kernels::cuda
