// The gradient of attention by keys on sm_90a: dk and dv, from transposed probabilities that are
// recomputed. A producer warpgroup keeps a ring of tiles of queries and do filled, with their
// statistics; each of two consumer warpgroups takes 64 keys of a kv head, over all query heads that
// share it, in order.
//
// Included by one file for each of the two types: they compile side by side. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_wgmma_grad.cuh"

namespace terrace::kernels::cuda {
namespace {

constexpr int kKeys = kConsumerRows;
constexpr int kQueries = 64;  // of a tile
constexpr int kQueryTiles = kQueries / 8;
constexpr int kStages = 2;

struct Barriers {
  Mbarrier keys, keys_used;                          // keys and values
  Mbarrier queries[kStages], queries_used[kStages];  // queries, do and statistics
};

template <int kDim>
struct Memory {
  static constexpr int kKeyBytes = PanelTileBytes(kKeys, kDim);
  static constexpr int kQueryBytes = PanelTileBytes(kQueries, kDim);
  static constexpr int kTileBytes = 2 * kKeyBytes + 2 * kStages * kQueryBytes;
  static constexpr int kStatisticsBytes =
      kStages * kQueries * static_cast<int>(sizeof(RowStatistics));
  static constexpr int64_t kBytes =
      kTileBytes + kStatisticsBytes + static_cast<int64_t>(sizeof(Barriers)) + kAlignmentSlack;

  unsigned char* base;

  __device__ unsigned char* keys() const { return base; }
  __device__ unsigned char* values() const { return base + kKeyBytes; }
  __device__ unsigned char* queries(int stage) const {
    return base + 2 * kKeyBytes + stage * kQueryBytes;
  }
  __device__ unsigned char* outs(int stage) const { return queries(kStages + stage); }
  __device__ RowStatistics* statistics(int stage) const {
    return reinterpret_cast<RowStatistics*>(base + kTileBytes) + stage * kQueries;
  }
  __device__ Barriers* barriers() const {
    return reinterpret_cast<Barriers*>(base + kTileBytes + kStatisticsBytes);
  }
};

struct Arguments {
  AttentionArguments a;
  bool dk_pairs, dv_pairs;  // they take two neighbouring T at a time
};

__device__ inline void InitBarriers(Barriers* b) {
  InitBarrier(&b->keys, 1);
  InitBarrier(&b->keys_used, kReleases);
  for (int stage = 0; stage < kStages; ++stage) {
    InitBarrier(&b->queries[stage], 1 + kWarp);  // the copies' thread, the statistics' lanes
    InitBarrier(&b->queries_used[stage], kReleases);
  }
  ShareBarriers();
}

// Calls task(task) for the block's tasks that somebody sees, and tile(task, head, first query) for
// the tiles of each, in the order in which consumers take them.
template <typename Task, typename Tile>
__device__ __forceinline__ void ForEachTile(const AttentionShape& s, Task task_begins, Tile tile) {
  const int64_t tasks = AttentionTasks(s, s.kv_heads, kKeys);
  for (int64_t i = blockIdx.x; i < tasks; i += gridDim.x) {
    const AttentionTask task = KeyTaskAt(s, s.kv_heads, kKeys, i);
    const RowRange seen = s.QueriesOf(task.first, task.first + kKeys);
    if (seen.begin >= seen.end) continue;
    task_begins(task);
    const int group = static_cast<int>(s.group()), begin = static_cast<int>(task.head) * group;
    for (int head = begin; head < begin + group; ++head) {
      for (int first = static_cast<int>(seen.begin); first < static_cast<int>(seen.end);
           first += kQueries) {
        tile(task, head, first);
      }
    }
  }
}

template <int kDim>
__device__ __forceinline__ void Produce(const AttentionShape& s, const Memory<kDim>& memory,
                                        const GradMaps& maps) {
  using M = Memory<kDim>;
  Barriers* const b = memory.barriers();
  Ring<kStages> ring;
  Ring<1> key_ring;
  ForEachTile(
      s,
      [&](const AttentionTask& task) {
        WaitForPhase(&b->keys_used, key_ring.parity ^ 1);
        ArriveExpecting(&b->keys, 2 * M::kKeyBytes);
        StartTileCopy<kKeys, kDim>(memory.keys(), maps.k, task.sequence, task.head, task.first,
                                   &b->keys);
        StartTileCopy<kKeys, kDim>(memory.values(), maps.v, task.sequence, task.head, task.first,
                                   &b->keys);
        key_ring.Advance();
      },
      [&](const AttentionTask& task, int head, int first) {
        WaitForPhase(&b->queries_used[ring.stage], ring.parity ^ 1);
        ArriveExpecting(&b->queries[ring.stage], 2 * M::kQueryBytes);
        StartTileCopy<kQueries, kDim>(memory.queries(ring.stage), maps.q, task.sequence, head,
                                      first, &b->queries[ring.stage]);
        StartTileCopy<kQueries, kDim>(memory.outs(ring.stage), maps.d_o, task.sequence, head, first,
                                      &b->queries[ring.stage]);
        ring.Advance();
      });
}

// A second warp of the producer brings what the copy engine cannot: lse in powers of two.
template <int kDim>
__device__ __forceinline__ void ProduceStatistics(const AttentionArguments& a,
                                                  const Memory<kDim>& memory) {
  Barriers* const b = memory.barriers();
  Ring<kStages> ring;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  ForEachTile(
      a.shape, [](const AttentionTask&) {},
      [&](const AttentionTask& task, int head, int first) {
        WaitForPhase(&b->queries_used[ring.stage], ring.parity ^ 1);
        for (int i = lane; i < kQueries; i += kWarp) {
          memory.statistics(ring.stage)[i] = StatisticsOfRow(a, task.sequence, head, first + i);
        }
        Arrive(&b->queries[ring.stage]);
        ring.Advance();
      });
}

template <typename T, int kDim>
struct Consumer {
  const Arguments& arguments;
  Memory<kDim> memory;
  Barriers* b;
  int group;
  Ring<kStages> ring;
  Ring<1> key_ring;

  __device__ __forceinline__ void StartByRows(const unsigned char* own, const unsigned char* other,
                                              float (*sums)[4]) const {
    StartProductByRows<T, kDim, kKeys, kQueries>(SharedAddress(own), group * kProductRows,
                                                 SharedAddress(other), sums);
    CommitProducts();
  }
  __device__ __forceinline__ void StartSums(const uint32_t (*weights)[4], const unsigned char* tile,
                                            float (*sums)[4]) const {
    StartProductOfWeights<T, kDim, kQueries>(weights, SharedAddress(tile), sums);
    CommitProducts();
  }

  // The tile at the ring. dv is on its way while the slopes are computed.
  __device__ __forceinline__ void AddTile(int first_key, int first_query, float (*dk)[4],
                                          float (*dv)[4]) {
    const AttentionShape& s = arguments.a.shape;
    const RowStatistics* const statistics = memory.statistics(ring.stage);
    float p[kQueryTiles][4], dp[kQueryTiles][4];
    uint32_t weights[kQueryTiles / 2][4], slopes[kQueryTiles / 2][4];
    WaitForPhase(&b->queries[ring.stage], ring.parity);
    FenceProducts();
    StartByRows(memory.keys(), memory.queries(ring.stage), p);
    StartByRows(memory.values(), memory.outs(ring.stage), dp);
    WaitForProducts<1>();
    HoldSums<kQueryTiles>(p);
    if (s.SeesAll(first_query, first_query + kQueries, first_key, first_key + 16)) {
      Probabilities<kQueries, false>(s, first_key, first_query, statistics, p);
    } else {
      Probabilities<kQueries, true>(s, first_key, first_query, statistics, p);
    }
    PackWeights<T, kQueryTiles>(p, weights);
    HoldSums<kDim / 8>(dv);
    FenceProducts();
    StartSums(weights, memory.outs(ring.stage), dv);
    WaitForProducts<1>();
    HoldSums<kQueryTiles>(dp);
    SlopesOfKeys<kQueries>(statistics, p, dp);
    PackWeights<T, kQueryTiles>(dp, slopes);
    HoldSums<kDim / 8>(dk);
    FenceProducts();
    StartSums(slopes, memory.queries(ring.stage), dk);
    WaitForProducts<0>();
    HoldSums<kDim / 8>(dv);
    HoldSums<kDim / 8>(dk);
    HoldWeights<kQueryTiles / 2>(weights);
    HoldWeights<kQueryTiles / 2>(slopes);
    Release(&b->queries_used[ring.stage]);
    ring.Advance();
  }

  __device__ __forceinline__ void Store(const Operand& to, bool pairs, const AttentionTask& task,
                                        int64_t first, float scale, const float (*sums)[4]) const {
    const AttentionShape& s = arguments.a.shape;
    StoreScaledRows<T, kDim>({to, pairs, s.add_keys, s.KeyRow(task.sequence, 0),
                              task.head * s.head_dim, s.length, s.head_dim},
                             first, scale, sums);
  }

  __device__ __forceinline__ void Run() {
    const AttentionArguments& a = arguments.a;
    const AttentionShape& s = a.shape;
    const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
    const int64_t tasks = AttentionTasks(s, s.kv_heads, kKeys);
    for (int64_t i = blockIdx.x; i < tasks; i += gridDim.x) {
      const AttentionTask task = KeyTaskAt(s, s.kv_heads, kKeys, i);
      const RowRange seen = s.QueriesOf(task.first, task.first + kKeys);
      const int64_t first = task.first + warp_row;
      float dk[kDim / 8][4], dv[kDim / 8][4];
      SetZero<kDim / 8>(dk);
      SetZero<kDim / 8>(dv);
      if (seen.begin < seen.end) {
        WaitForPhase(&b->keys, key_ring.parity);
        for (int64_t head = 0; head < s.group(); ++head) {
          for (int tile = static_cast<int>(seen.begin); tile < static_cast<int>(seen.end);
               tile += kQueries) {
            AddTile(static_cast<int>(first), tile, dk, dv);
          }
        }
        Release(&b->keys_used);
        key_ring.Advance();
      }
      Store(a.dk, arguments.dk_pairs, task, first, s.scale, dk);
      Store(a.dv, arguments.dv_pairs, task, first, 1.0f, dv);
    }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    WgmmaKeyGradKernel(const __grid_constant__ GradMaps maps,
                       const __grid_constant__ Arguments arguments) {
  const Memory<kDim> memory = {AlignedShared()};
  if (threadIdx.x == 0) InitBarriers(memory.barriers());
  __syncthreads();
  // The same for all lanes, and the compiler knows it.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == kConsumers) {
    LeaveRegisters<kProducerRegisters>();
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
    if (threadIdx.x % kWarpgroup == 0) Produce<kDim>(arguments.a.shape, memory, maps);
    if (warp == 1) ProduceStatistics<kDim>(arguments.a, memory);
    return;
  }
  TakeRegisters<kConsumerRegisters>();
  Consumer<T, kDim> consumer = {arguments, memory, memory.barriers(), group, {}, {}};
  consumer.Run();
}

template <typename T, int kDim>
Status LaunchKeyGrad(const AttentionArguments& a, const Context& context) {
  const AttentionShape& s = a.shape;
  GradMaps maps;
  const Status status = DescribeGrad(a, kQueries, kKeys, PanelColumns(kDim), &maps);
  if (!status.ok()) return status;
  const int64_t tasks = AttentionTasks(s, s.kv_heads, kKeys);
  return Launch("attention_grad", WgmmaKeyGradKernel<T, kDim>,
                WgmmaShape(tasks, Memory<kDim>::kBytes, context), context, maps,
                Arguments{a, TakesPairs<T>(a.dk), TakesPairs<T>(a.dv)});
}

template <typename T>
Status ByHeadSize(const AttentionArguments& a, const Context& context) {
  return ForHeadSize(a.shape.head_dim,
                     [&](auto size) { return LaunchKeyGrad<T, size()>(a, context); });
}

}  // namespace
}  // namespace terrace::kernels::cuda
