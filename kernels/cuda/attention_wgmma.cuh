// What the attention kernels of sm_90a share: tiles of bf16 or f16 that the copy engine brings,
// products with them, and the parts of a block (Shah et al. 2024, arXiv 2407.08608).
//
// A block has two consumer warpgroups, which own 64 rows each of one side, and behind them a
// producer warpgroup, of which one thread starts the copies. A tile lies in shared memory as panels
// of kPanel columns side by side, each of all its rows, swizzled. kDim is the head size, padded
// with zeros to 64, 96 or 128; T the type of tiles, BF16 or F16. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/tensor_copy.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace terrace::kernels::cuda {

// Where the swizzle's pattern of 128-byte rows begins.
inline constexpr int kPanelAlignment = 1024;

// A panel is as wide as the widest swizzle that divides the head.
inline constexpr int kTileElementBytes = 2;
TERRACE_HOST_DEVICE constexpr int PanelColumns(int dim) { return dim % 64 == 0 ? 64 : 32; }
TERRACE_HOST_DEVICE constexpr int PanelBytes(int rows, int dim) {
  return rows * PanelColumns(dim) * kTileElementBytes;
}
TERRACE_HOST_DEVICE constexpr int PanelTileBytes(int rows, int dim) {
  return rows * dim * kTileElementBytes;
}

// A block: its warpgroups, the rows of its own side, and the registers of a thread of each part,
// which together are those of the multiprocessor. (Three consumers have no room for their sums.)
inline constexpr int kConsumers = 2;
inline constexpr int kWgmmaThreads = (kConsumers + 1) * kWarpgroup;
inline constexpr int kConsumerRows = kConsumers * kProductRows;

// Blocks that stay and take one task after another.
inline LaunchShape WgmmaShape(int64_t tasks, int64_t shared_bytes, const Context& context) {
  return {.grid_x = std::min(tasks, int64_t{context.multiprocessors}),
          .threads = kWgmmaThreads,
          .shared_bytes = shared_bytes};
}

// launch(the least head size of which there are kernels that holds this one).
template <typename LaunchOf>
Status ForHeadSize(int64_t head_dim, LaunchOf launch) {
  if (head_dim <= 64) return launch(std::integral_constant<int, 64>());
  return head_dim <= 96 ? launch(std::integral_constant<int, 96>())
                        : launch(std::integral_constant<int, 128>());
}
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

__device__ inline unsigned char* AlignedShared() {
  unsigned char* memory = DynamicShared();
  const uint32_t beyond = SharedAddress(memory) % kPanelAlignment;
  return memory + (beyond == 0 ? 0 : kPanelAlignment - beyond);
}
inline constexpr int64_t kAlignmentSlack = kPanelAlignment;

// Rows [row, row + kRows) of a head on their way to `to`; the caller has told the barrier to expect
// PanelTileBytes.
template <int kRows, int kDim>
__device__ __forceinline__ void StartTileCopy(unsigned char* to, const CUtensorMap& map,
                                              int64_t sequence, int64_t head, int64_t row,
                                              Mbarrier* barrier) {
#pragma unroll
  for (int p = 0; p < kDim / PanelColumns(kDim); ++p) {
    StartBoxCopy(to + p * PanelBytes(kRows, kDim), map,
                 {p * PanelColumns(kDim), static_cast<int>(head), static_cast<int>(row),
                  static_cast<int>(sequence)},
                 barrier);
  }
}

// Starts sums (64 x kColumns) = rows [a_row, a_row + 64) of tile a times the rows of tile b, over
// kDim columns.
template <typename T, int kDim, int kRowsA, int kColumns>
__device__ __forceinline__ void StartProductByRows(uint32_t a, int a_row, uint32_t b,
                                                   float (*sums)[4]) {
  constexpr int kRowBytes = PanelColumns(kDim) * kTileElementBytes;
  constexpr int kSteps = PanelColumns(kDim) / kProductDepth;  // in a panel
#pragma unroll
  for (int c = 0; c < kDim / kProductDepth; ++c) {
    const int inside = c % kSteps * kProductDepth * kTileElementBytes;
    const uint32_t a_at = a + c / kSteps * PanelBytes(kRowsA, kDim) + a_row * kRowBytes + inside;
    const uint32_t b_at = b + c / kSteps * PanelBytes(kColumns, kDim) + inside;
    StartSharedProduct<T, kColumns>(DescribeMatrix<kRowBytes>(a_at, kNoLeading),
                                    DescribeMatrix<kRowBytes>(b_at, kNoLeading), c > 0, sums);
  }
}

// Starts sums (64 x kDim) += weights (64 x kRows, fragments of 16 columns each) times the rows of
// tile b.
template <typename T, int kDim, int kRows>
__device__ __forceinline__ void StartProductOfWeights(const uint32_t (*weights)[4], uint32_t b,
                                                      float (*sums)[4]) {
  constexpr int kRowBytes = PanelColumns(kDim) * kTileElementBytes;
#pragma unroll
  for (int k = 0; k < kRows / kProductDepth; ++k) {
    const uint32_t b_at = b + k * kProductDepth * kRowBytes;
    StartRegisterProduct<T, kDim>(weights[k],
                                  DescribeMatrix<kRowBytes>(b_at, PanelBytes(kRows, kDim)), sums);
  }
}

// What a lane holds of two neighbouring tiles of sums is what it must bring of A, rounded.
template <typename T, int kTiles>
__device__ __forceinline__ void PackWeights(const float (*values)[4], uint32_t (*weights)[4]) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    const float* low = values[2 * k];
    const float* high = values[2 * k + 1];
    weights[k][0] = PackPair<T>(low[0], low[1]);
    weights[k][1] = PackPair<T>(low[2], low[3]);
    weights[k][2] = PackPair<T>(high[0], high[1]);
    weights[k][3] = PackPair<T>(high[2], high[3]);
  }
}

// The warp has used what the barrier guards; a phase is complete when all warps of consumers have.
__device__ __forceinline__ void Release(Mbarrier* barrier) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) Arrive(barrier);
}
inline constexpr unsigned kReleases = kConsumers * kWarpgroup / kWarp;

// Of a block that owns queries and has `kStages` tiles of keys and of values on their way: whether
// a tile is there, and whether all consumers have used it.
template <int kStages>
struct TileBarriers {
  Mbarrier queries, queries_used;
  Mbarrier keys[kStages], keys_used[kStages];
  Mbarrier values[kStages], values_used[kStages];

  // By one thread.
  __device__ void Init() {
    InitBarrier(&queries, 1);
    InitBarrier(&queries_used, kReleases);
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(&keys[stage], 1);
      InitBarrier(&keys_used[stage], kReleases);
      InitBarrier(&values[stage], 1);
      InitBarrier(&values_used[stage], kReleases);
    }
    ShareBarriers();
  }
};

// Whether an operand takes two neighbouring T in one access.
template <typename T>
bool TakesPairs(const Operand& operand) {
  return (std::is_same_v<T, BF16> ? operand.bf16 : operand.f16) && operand.row_stride % 2 == 0 &&
         reinterpret_cast<uintptr_t>(operand.data) % 4 == 0;
}

// Tiles of one of the pieces, `operand` being one of q's shape (queries) or of k's.
inline Status DescribePiece(const AttentionShape& s, const Operand& operand, int64_t heads,
                            int64_t first_row, int box_rows, int box_columns, CUtensorMap* map) {
  const int64_t row_bytes = operand.row_stride * kTileElementBytes;
  const HeadsInMemory described = {
      .data = static_cast<const std::byte*>(operand.data) + first_row * row_bytes,
      .head_dim = s.head_dim,
      .heads = heads,
      .rows = s.length,
      .sequences = s.batch,
      .row_bytes = row_bytes,
      .sequence_bytes = s.rows * row_bytes};
  return DescribeHeads(described, box_rows, box_columns, map);
}
inline Status DescribeQueries(const AttentionShape& s, const Operand& operand, int box_rows,
                              int box_columns, CUtensorMap* map) {
  return DescribePiece(s, operand, s.heads, s.query_row, box_rows, box_columns, map);
}
inline Status DescribeKeys(const AttentionShape& s, const Operand& operand, int box_rows,
                           int box_columns, CUtensorMap* map) {
  return DescribePiece(s, operand, s.kv_heads, s.key_row, box_rows, box_columns, map);
}

}  // namespace terrace::kernels::cuda
