// The gradient of attention by queries on sm_90a: dq, from probabilities that are recomputed. A
// producer warpgroup keeps a ring of key and value tiles filled; each of two consumer warpgroups
// takes 64 queries and starts the scores of the next tile beside the products of this one.
//
// Included by one file for each of the two types: they compile side by side. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_wgmma_grad.cuh"

namespace terrace::kernels::cuda {
namespace {

constexpr int kQueries = kConsumerRows;
constexpr int kKeys = 64;  // of a tile: scores, products with do and dq fit into the registers
constexpr int kKeyTiles = kKeys / 8;
constexpr int kStages = 3;

using Barriers = TileBarriers<kStages>;  // do comes with the queries

template <int kDim>
struct Memory {
  static constexpr int kQueryBytes = PanelTileBytes(kQueries, kDim);
  static constexpr int kKeyBytes = PanelTileBytes(kKeys, kDim);
  static constexpr int kTileBytes = 2 * kQueryBytes + 2 * kStages * kKeyBytes;
  static constexpr int64_t kBytes =
      kTileBytes + static_cast<int64_t>(sizeof(Barriers)) + kAlignmentSlack;

  unsigned char* base;

  __device__ unsigned char* queries() const { return base; }
  __device__ unsigned char* outs() const { return base + kQueryBytes; }
  __device__ unsigned char* keys(int stage) const {
    return base + 2 * kQueryBytes + stage * kKeyBytes;
  }
  __device__ unsigned char* values(int stage) const { return keys(kStages + stage); }
  __device__ Barriers* barriers() const { return reinterpret_cast<Barriers*>(base + kTileBytes); }
};

struct Arguments {
  AttentionArguments a;
  bool pairs;  // dq takes two neighbouring T at a time
};

// The copies of all of the block's tasks, each as soon as its place is free.
template <int kDim>
__device__ __forceinline__ void Produce(const AttentionShape& s, const Memory<kDim>& memory,
                                        const GradMaps& maps) {
  using M = Memory<kDim>;
  Barriers* const b = memory.barriers();
  Ring<kStages> ring;
  Ring<1> query_ring;
  const int64_t tasks = AttentionTasks(s, s.heads, kQueries);
  for (int64_t i = blockIdx.x; i < tasks; i += gridDim.x) {
    const AttentionTask task = TaskAt(s, s.heads, kQueries, i);
    const RowRange seen = s.KeysOf(task.first, task.first + kQueries);
    if (seen.begin >= seen.end) continue;
    WaitForPhase(&b->queries_used, query_ring.parity ^ 1);
    ArriveExpecting(&b->queries, 2 * M::kQueryBytes);
    StartTileCopy<kQueries, kDim>(memory.queries(), maps.q, task.sequence, task.head, task.first,
                                  &b->queries);
    StartTileCopy<kQueries, kDim>(memory.outs(), maps.d_o, task.sequence, task.head, task.first,
                                  &b->queries);
    query_ring.Advance();
    const int64_t kv_head = task.head / s.group();
    for (int64_t tile = seen.begin; tile < seen.end; tile += kKeys) {
      WaitForPhase(&b->keys_used[ring.stage], ring.parity ^ 1);
      ArriveExpecting(&b->keys[ring.stage], M::kKeyBytes);
      StartTileCopy<kKeys, kDim>(memory.keys(ring.stage), maps.k, task.sequence, kv_head, tile,
                                 &b->keys[ring.stage]);
      WaitForPhase(&b->values_used[ring.stage], ring.parity ^ 1);
      ArriveExpecting(&b->values[ring.stage], M::kKeyBytes);
      StartTileCopy<kKeys, kDim>(memory.values(ring.stage), maps.v, task.sequence, kv_head, tile,
                                 &b->values[ring.stage]);
      ring.Advance();
    }
  }
}

template <typename T, int kDim>
struct Consumer {
  const Arguments& arguments;
  Memory<kDim> memory;
  Barriers* b;
  int group;
  Ring<kStages> ring;
  Ring<1> query_ring;

  // Scores and products with do of the tile at the ring, in one group.
  __device__ __forceinline__ void StartScores(float (*scores)[4], float (*dp)[4]) const {
    const int row = group * kProductRows;
    StartProductByRows<T, kDim, kQueries, kKeys>(SharedAddress(memory.queries()), row,
                                                 SharedAddress(memory.keys(ring.stage)), scores);
    StartProductByRows<T, kDim, kQueries, kKeys>(SharedAddress(memory.outs()), row,
                                                 SharedAddress(memory.values(ring.stage)), dp);
    CommitProducts();
  }
  __device__ __forceinline__ void StartSums(int stage, const uint32_t (*slopes)[4],
                                            float (*dq)[4]) const {
    StartProductOfWeights<T, kDim, kKeys>(slopes, SharedAddress(memory.keys(stage)), dq);
    CommitProducts();
  }
  __device__ __forceinline__ void WaitForTile() const {
    WaitForPhase(&b->keys[ring.stage], ring.parity);
    WaitForPhase(&b->values[ring.stage], ring.parity);
  }
  __device__ __forceinline__ void Slopes(int first, int tile, const RowStatistics* statistics,
                                         const float (*dp)[4], float (*scores)[4]) const {
    const AttentionShape& s = arguments.a.shape;
    if (s.SeesAll(first, first + 16, tile, tile + kKeys)) {
      SlopesOfQueries<kKeys, false>(s, first, tile, statistics, dp, scores);
    } else {
      SlopesOfQueries<kKeys, true>(s, first, tile, statistics, dp, scores);
    }
  }

  // dq of the lane's rows over the keys [begin, end). The scores of a tile are computed beside the
  // sums of the one before.
  __device__ __forceinline__ void Tiles(int begin, int end, int first,
                                        const RowStatistics* statistics, float (*dq)[4]) {
    uint32_t slopes[kKeyTiles / 2][4];
    WaitForPhase(&b->queries, query_ring.parity);
    {
      float scores[kKeyTiles][4], dp[kKeyTiles][4];
      WaitForTile();
      FenceProducts();
      StartScores(scores, dp);
      WaitForProducts<0>();
      HoldSums<kKeyTiles>(scores);
      HoldSums<kKeyTiles>(dp);
      Release(&b->values_used[ring.stage]);
      Slopes(first, begin, statistics, dp, scores);
      PackWeights<T, kKeyTiles>(scores, slopes);
    }
    for (int tile = begin + kKeys; tile < end; tile += kKeys) {
      const int before = ring.stage;
      ring.Advance();
      float scores[kKeyTiles][4], dp[kKeyTiles][4];
      WaitForTile();
      HoldSums<kDim / 8>(dq);
      FenceProducts();
      StartScores(scores, dp);
      StartSums(before, slopes, dq);
      WaitForProducts<1>();
      HoldSums<kKeyTiles>(scores);
      HoldSums<kKeyTiles>(dp);
      Release(&b->values_used[ring.stage]);
      Slopes(first, tile, statistics, dp, scores);
      WaitForProducts<0>();
      HoldSums<kDim / 8>(dq);
      HoldWeights<kKeyTiles / 2>(slopes);
      Release(&b->keys_used[before]);
      PackWeights<T, kKeyTiles>(scores, slopes);
    }
    Release(&b->queries_used);
    query_ring.Advance();
    HoldSums<kDim / 8>(dq);
    FenceProducts();
    StartSums(ring.stage, slopes, dq);
    WaitForProducts<0>();
    HoldSums<kDim / 8>(dq);
    HoldWeights<kKeyTiles / 2>(slopes);
    Release(&b->keys_used[ring.stage]);
    ring.Advance();
  }

  __device__ __forceinline__ void Run() {
    const AttentionArguments& a = arguments.a;
    const AttentionShape& s = a.shape;
    const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
    const int64_t tasks = AttentionTasks(s, s.heads, kQueries);
    for (int64_t i = blockIdx.x; i < tasks; i += gridDim.x) {
      const AttentionTask task = TaskAt(s, s.heads, kQueries, i);
      const int64_t first = task.first + warp_row;
      const RowStatistics statistics[2] = {
          StatisticsOfRow(a, task.sequence, task.head, first + g),
          StatisticsOfRow(a, task.sequence, task.head, first + g + 8)};
      const RowRange seen = s.KeysOf(task.first, task.first + kQueries);
      float dq[kDim / 8][4];
      SetZero<kDim / 8>(dq);
      if (seen.begin < seen.end) {
        Tiles(static_cast<int>(seen.begin), static_cast<int>(seen.end), static_cast<int>(first),
              statistics, dq);
      }
      StoreScaledRows<T, kDim>({a.dq, arguments.pairs, s.add_queries, s.QueryRow(task.sequence, 0),
                                task.head * s.head_dim, s.length, s.head_dim},
                               first, s.scale, dq);
    }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    WgmmaQueryGradKernel(const __grid_constant__ GradMaps maps,
                         const __grid_constant__ Arguments arguments) {
  const Memory<kDim> memory = {AlignedShared()};
  if (threadIdx.x == 0) memory.barriers()->Init();
  __syncthreads();
  // The same for all lanes, and the compiler knows it.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == kConsumers) {
    LeaveRegisters<kProducerRegisters>();
    if (threadIdx.x % kWarpgroup == 0) Produce<kDim>(arguments.a.shape, memory, maps);
    return;
  }
  TakeRegisters<kConsumerRegisters>();
  Consumer<T, kDim> consumer = {arguments, memory, memory.barriers(), group, {}, {}};
  consumer.Run();
}

template <typename T, int kDim>
Status LaunchQueryGrad(const AttentionArguments& a, const Context& context) {
  const AttentionShape& s = a.shape;
  GradMaps maps;
  const Status status = DescribeGrad(a, kQueries, kKeys, PanelColumns(kDim), &maps);
  if (!status.ok()) return status;
  const int64_t tasks = AttentionTasks(s, s.heads, kQueries);
  return Launch("attention_grad", WgmmaQueryGradKernel<T, kDim>,
                WgmmaShape(tasks, Memory<kDim>::kBytes, context), context, maps,
                Arguments{a, TakesPairs<T>(a.dq)});
}

template <typename T>
Status ByHeadSize(const AttentionArguments& a, const Context& context) {
  return ForHeadSize(a.shape.head_dim,
                     [&](auto size) { return LaunchQueryGrad<T, size()>(a, context); });
}

}  // namespace
}  // namespace terrace::kernels::cuda
