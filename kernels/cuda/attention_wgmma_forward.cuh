// Attention forward on sm_90a (Shah et al. 2024, arXiv 2407.08608, in our own words): one thread of
// a producer warpgroup keeps a ring of key and value tiles filled; two consumer warpgroups
// take 64 queries each, in turns on the matrix units, so that one's softmax hides behind the
// other's products, and each starts the scores of the next tile before it waits for the values of
// this one.
//
// Blocks stay for several tasks: the tiles of the next arrive while the last is written.
//
// Included by one file for each of the two types: they compile side by side. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_wgmma_rows.cuh"

namespace terrace::kernels::cuda {
namespace {

constexpr int kQueries = kConsumerRows;
constexpr int kKeys = 128;  // of a tile
constexpr int kKeyTiles = kKeys / 8;
constexpr int kStages = 2;

template <int kDim>
struct Sizes {
  static constexpr int kQueryBytes = PanelTileBytes(kQueries, kDim);
  static constexpr int kKeyBytes = PanelTileBytes(kKeys, kDim);
  static constexpr int kTileBytes = kQueryBytes + 2 * kStages * kKeyBytes;
};

using Barriers = TileBarriers<kStages>;

template <int kDim>
struct Memory {
  unsigned char* base;

  __device__ unsigned char* queries() const { return base; }
  __device__ unsigned char* keys(int stage) const {
    return base + Sizes<kDim>::kQueryBytes + stage * Sizes<kDim>::kKeyBytes;
  }
  __device__ unsigned char* values(int stage) const { return keys(kStages + stage); }
  __device__ Barriers* barriers() const {
    return reinterpret_cast<Barriers*>(base + Sizes<kDim>::kTileBytes);
  }
};

struct Arguments {
  AttentionArguments a;
  bool pairs;  // o takes two neighbouring T at a time
};

// The copies of all of the block's tasks, each as soon as its place is free.
template <int kDim>
__device__ __forceinline__ void Produce(const AttentionShape& s, const Memory<kDim>& memory,
                                        const CUtensorMap& q, const CUtensorMap& k,
                                        const CUtensorMap& v) {
  using S = Sizes<kDim>;
  Barriers* const b = memory.barriers();
  Ring<kStages> ring;
  Ring<1> query_ring;
  const int64_t tasks = AttentionTasks(s, s.heads, kQueries);
  for (int64_t i = blockIdx.x; i < tasks; i += gridDim.x) {
    const AttentionTask task = TaskAt(s, s.heads, kQueries, i);
    const RowRange seen = s.KeysOf(task.first, task.first + kQueries);
    if (seen.begin >= seen.end) continue;
    // The parity before the first phase counts as complete: all places are free.
    WaitForPhase(&b->queries_used, query_ring.parity ^ 1);
    ArriveExpecting(&b->queries, S::kQueryBytes);
    StartTileCopy<kQueries, kDim>(memory.queries(), q, task.sequence, task.head, task.first,
                                  &b->queries);
    query_ring.Advance();
    const int64_t kv_head = task.head / s.group();
    for (int64_t tile = seen.begin; tile < seen.end; tile += kKeys) {
      WaitForPhase(&b->keys_used[ring.stage], ring.parity ^ 1);
      ArriveExpecting(&b->keys[ring.stage], S::kKeyBytes);
      StartTileCopy<kKeys, kDim>(memory.keys(ring.stage), k, task.sequence, kv_head, tile,
                                 &b->keys[ring.stage]);
      WaitForPhase(&b->values_used[ring.stage], ring.parity ^ 1);
      ArriveExpecting(&b->values[ring.stage], S::kKeyBytes);
      StartTileCopy<kKeys, kDim>(memory.values(ring.stage), v, task.sequence, kv_head, tile,
                                 &b->values[ring.stage]);
      ring.Advance();
    }
  }
}

// A consumer's turns on the matrix units: barrier 1 + i opens for warpgroup i when the one before
// it has started its products.
struct Turns {
  int group;

  // The first turn is warpgroup 0's.
  __device__ void Begin() const {
    if (group == kConsumers - 1) ArriveAt(1, 2 * kWarpgroup);
  }
  __device__ void Await() const { Sync(1 + group, 2 * kWarpgroup); }
  __device__ void Pass() const { ArriveAt(1 + (group + 1) % kConsumers, 2 * kWarpgroup); }
  // Takes the turn that is left over: a block may not end with half a barrier.
  __device__ void End() const {
    if (group == 0) Await();
  }
};

template <typename T, int kDim>
struct Consumer {
  const Arguments& arguments;
  Memory<kDim> memory;
  Barriers* b;
  Turns turns;
  Ring<kStages> ring;
  Ring<1> query_ring;

  __device__ __forceinline__ void StartScores(int stage, float (*scores)[4]) const {
    StartProductByRows<T, kDim, kQueries, kKeys>(SharedAddress(memory.queries()),
                                                 turns.group * kProductRows,
                                                 SharedAddress(memory.keys(stage)), scores);
  }
  __device__ __forceinline__ void StartOutputs(int stage, const uint32_t (*weights)[4],
                                               Rows<kDim>* rows) const {
    StartProductOfWeights<T, kDim, kKeys>(weights, SharedAddress(memory.values(stage)), rows->o);
  }

  // All tiles of keys from `seen` for the lane's rows. The scores of a tile are computed beside the
  // outputs of the one before.
  __device__ __forceinline__ void Tiles(int begin, int end, int first, Rows<kDim>* rows) {
    const AttentionShape& s = arguments.a.shape;
    uint32_t weights[kKeyTiles / 2][4];
    float old[2];
    WaitForPhase(&b->queries, query_ring.parity);
    {
      float scores[kKeyTiles][4];
      WaitForPhase(&b->keys[ring.stage], ring.parity);
      FenceProducts();
      StartScores(ring.stage, scores);
      CommitProducts();
      WaitForProducts<0>();
      HoldSums<kKeyTiles>(scores);
      Release(&b->keys_used[ring.stage]);
      Softmax<kDim, kKeys>(s, first, begin, scores, rows, old);
      ScaleRows<kDim>(old, rows);
      PackWeights<T, kKeyTiles>(scores, weights);
    }
    for (int tile = begin + kKeys; tile < end; tile += kKeys) {
      const Ring<kStages> before = ring;
      ring.Advance();
      float scores[kKeyTiles][4];
      WaitForPhase(&b->keys[ring.stage], ring.parity);
      WaitForPhase(&b->values[before.stage], before.parity);
      turns.Await();
      HoldSums<kDim / 8>(rows->o);
      FenceProducts();
      StartScores(ring.stage, scores);
      CommitProducts();
      StartOutputs(before.stage, weights, rows);
      CommitProducts();
      turns.Pass();
      WaitForProducts<1>();
      HoldSums<kKeyTiles>(scores);
      Release(&b->keys_used[ring.stage]);
      Softmax<kDim, kKeys>(s, first, tile, scores, rows, old);
      WaitForProducts<0>();
      HoldSums<kDim / 8>(rows->o);
      HoldWeights<kKeyTiles / 2>(weights);
      Release(&b->values_used[before.stage]);
      ScaleRows<kDim>(old, rows);
      PackWeights<T, kKeyTiles>(scores, weights);
    }
    Release(&b->queries_used);
    query_ring.Advance();
    WaitForPhase(&b->values[ring.stage], ring.parity);
    HoldSums<kDim / 8>(rows->o);
    FenceProducts();
    StartOutputs(ring.stage, weights, rows);
    CommitProducts();
    WaitForProducts<0>();
    HoldSums<kDim / 8>(rows->o);
    HoldWeights<kKeyTiles / 2>(weights);
    Release(&b->values_used[ring.stage]);
    ring.Advance();
  }

  __device__ __forceinline__ void Run() {
    const AttentionShape& s = arguments.a.shape;
    const int64_t warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
    const int64_t tasks = AttentionTasks(s, s.heads, kQueries);
    turns.Begin();
    for (int64_t i = blockIdx.x; i < tasks; i += gridDim.x) {
      const AttentionTask task = TaskAt(s, s.heads, kQueries, i);
      const RowRange seen = s.KeysOf(task.first, task.first + kQueries);
      Rows<kDim> rows;
      StartRows(arguments.a, task, task.first + warp_row, &rows);
      if (seen.begin < seen.end) {
        Tiles(static_cast<int>(seen.begin), static_cast<int>(seen.end),
              static_cast<int>(task.first + warp_row), &rows);
      }
      FinishRows<T, kDim>(arguments.a, arguments.pairs, task, task.first + warp_row, rows);
    }
    turns.End();
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    WgmmaForwardKernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                       const __grid_constant__ CUtensorMap v,
                       const __grid_constant__ Arguments arguments) {
  const Memory<kDim> memory = {AlignedShared()};
  if (threadIdx.x == 0) memory.barriers()->Init();
  __syncthreads();
  // The same for all lanes, and the compiler knows it.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == kConsumers) {
    LeaveRegisters<kProducerRegisters>();
    if (threadIdx.x % kWarpgroup == 0) Produce<kDim>(arguments.a.shape, memory, q, k, v);
    return;
  }
  TakeRegisters<kConsumerRegisters>();
  Consumer<T, kDim> consumer = {arguments, memory, memory.barriers(), {group}, {}, {}};
  consumer.Run();
}

template <typename T, int kDim>
Status LaunchForward(const AttentionArguments& a, const Context& context) {
  using S = Sizes<kDim>;
  const AttentionShape& s = a.shape;
  CUtensorMap q, k, v;
  Status status = DescribeQueries(s, a.q, kQueries, PanelColumns(kDim), &q);
  if (status.ok()) status = DescribeKeys(s, a.k, kKeys, PanelColumns(kDim), &k);
  if (status.ok()) status = DescribeKeys(s, a.v, kKeys, PanelColumns(kDim), &v);
  if (!status.ok()) return status;
  const int64_t tasks = AttentionTasks(s, s.heads, kQueries);
  const int64_t bytes = S::kTileBytes + static_cast<int64_t>(sizeof(Barriers)) + kAlignmentSlack;
  return Launch("attention", WgmmaForwardKernel<T, kDim>, WgmmaShape(tasks, bytes, context),
                context, q, k, v, Arguments{a, TakesPairs<T>(a.o)});
}

template <typename T>
Status ByHeadSize(const AttentionArguments& a, const Context& context) {
  return ForHeadSize(a.shape.head_dim,
                     [&](auto size) { return LaunchForward<T, size()>(a, context); });
}

}  // namespace
}  // namespace terrace::kernels::cuda
