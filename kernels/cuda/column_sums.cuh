// Sums down the columns of something computed from rows: gradients of biases and of the weights of
// norms. Blocks of rows leave partial sums in the workspace; they are added in block order, so that
// the result does not depend on who ran first.
//
// A term is a small struct with `kSums` and Terms(row, column, float[kSums][kPack]): those of the
// pack of columns from `column` on, zeros behind the last column. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/row_packs.cuh"
#include "kernels/cuda/workspace.h"

namespace terrace::kernels::cuda {

inline constexpr int kMaxColumnSums = 2;

struct ColumnSums {
  int64_t rows = 0, columns = 0;
  float* out[kMaxColumnSums] = {};
  bool accumulate = false;
};

struct PartialColumns {
  int64_t rows, columns, rows_per_block, blocks;
  float* parts;  // [sum][block][PartialStride(columns)]

  __device__ float* At(int sum, int64_t block) const {
    return parts + (sum * blocks + block) * PartialStride(columns);
  }
};

template <typename Term>
__global__ void __launch_bounds__(kWarp* kColumnLanes)
    ColumnSumKernel(PartialColumns p, Term term) {
  __shared__ float lanes[Term::kSums][kColumnLanes][kColumnTile];
  const int x = static_cast<int>(threadIdx.x) % kWarp * static_cast<int>(kPack);
  const int y = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t begin = blockIdx.y * p.rows_per_block;
  const int64_t end = begin + p.rows_per_block < p.rows ? begin + p.rows_per_block : p.rows;
  const int64_t tiles = DivideUp(p.columns, kColumnTile);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t first = tile * kColumnTile;
    float sums[Term::kSums][kPack] = {};
    for (int64_t row = begin + y; first + x < p.columns && row < end; row += kColumnLanes) {
      float terms[Term::kSums][kPack];
      term.Terms(row, first + x, terms);
#pragma unroll
      for (int i = 0; i < Term::kSums * kPack; ++i) {
        sums[i / kPack][i % kPack] += terms[i / kPack][i % kPack];
      }
    }
    __syncthreads();  // the tile before has been added up
#pragma unroll
    for (int i = 0; i < Term::kSums * kPack; ++i) {
      lanes[i / kPack][y][x + i % kPack] = sums[i / kPack][i % kPack];
    }
    __syncthreads();
    const int own = static_cast<int>(threadIdx.x);  // a thread for each column of the tile
    static_assert(kColumnTile == kWarp * kColumnLanes);
    if (first + own >= p.columns) continue;
    for (int s = 0; s < Term::kSums; ++s) {
      float total = lanes[s][0][own];
      for (int lane = 1; lane < kColumnLanes; ++lane) total += lanes[s][lane][own];
      p.At(s, blockIdx.y)[first + own] = total;
    }
  }
}

// out = (+=) the partial sums, in block order (column_sums.cu).
Status FinishColumnSums(const char* what, const PartialColumns& parts, const ColumnSums& sums,
                        int count, const Context& context);

// `workspace` has room for Term::kSums sums of these rows and columns.
template <typename Term>
Status LaunchColumnSums(const char* what, const ColumnSums& sums, const Term& term,
                        const Context& context) {
  const ColumnCut cut = CutRows(sums.rows);
  const PartialColumns parts = {.rows = sums.rows,
                                .columns = sums.columns,
                                .rows_per_block = cut.rows_per_block,
                                .blocks = cut.blocks,
                                .parts = reinterpret_cast<float*>(context.workspace)};
  Status status = Launch(what, ColumnSumKernel<Term>, ColumnShape(sums.rows, sums.columns), context,
                         parts, term);
  if (!status.ok()) return status;
  return FinishColumnSums(what, parts, sums, Term::kSums, context);
}

}  // namespace terrace::kernels::cuda
