// What the host execution shows of sm_90a's own: phases of barriers, boxes of tensors and their
// swizzle, products of warpgroups, and that misuse ends the process.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/cuda/attention_wgmma.cuh"

namespace terrace::kernels::cuda {
namespace {

using simt::Order;

constexpr size_t kSharedBytes = 96 << 10;

void Launch(unsigned threads, const std::function<void()>& thread) {
  simt::Run(dim3(1), dim3(threads), kSharedBytes, thread);
}

// Whole numbers, so that sums are exact.
template <typename T = BF16>
std::vector<T> RandomMatrix(int rows, int columns) {
  std::mt19937 random(static_cast<unsigned>(rows * 1000 + columns));
  std::vector<T> matrix(static_cast<size_t>(rows) * columns);
  for (T& value : matrix) {
    const float number = static_cast<float>(random() % 17) - 8;
    value.bits = std::is_same_v<T, F16> ? ToF16(number).bits : ToBF16(number).bits;
  }
  return matrix;
}

// [row][head][column] of one sequence, one head.
template <typename T>
CUtensorMap Describe(const std::vector<T>& matrix, int rows, int columns, int box_rows,
                     int box_columns) {
  CUtensorMap map;
  const HeadsInMemory heads = {.data = matrix.data(),
                               .head_dim = columns,
                               .heads = 1,
                               .rows = rows,
                               .sequences = 1,
                               .row_bytes = columns * 2,
                               .sequence_bytes = rows * columns * 2};
  const Status status = DescribeHeads(heads, box_rows, box_columns, &map);
  EXPECT_TRUE(status.ok()) << status.message;
  return map;
}

Mbarrier* BarrierAt(unsigned char* memory, size_t tile_bytes) {
  return reinterpret_cast<Mbarrier*>(memory + tile_bytes);
}

TEST(TensorMapTest, RowsThatTheCopyEngineCannotTakeAreRefused) {
  const std::vector<BF16> matrix = RandomMatrix(8, 72);
  CUtensorMap map;
  HeadsInMemory heads = {.data = matrix.data(),
                         .head_dim = 64,
                         .heads = 1,
                         .rows = 8,
                         .sequences = 1,
                         .row_bytes = 144,
                         .sequence_bytes = 8 * 144};
  EXPECT_TRUE(DescribeHeads(heads, 8, 64, &map).ok());
  heads.row_bytes = 136;
  EXPECT_EQ(DescribeHeads(heads, 8, 64, &map).message, "cuda: cuTensorMapEncodeTiled: error 1");
  heads.row_bytes = 144;
  heads.data = matrix.data() + 1;
  EXPECT_FALSE(DescribeHeads(heads, 8, 64, &map).ok());
}

// A box of kPanel columns that begins at (row, column) of a matrix of 20 x 72, in shared memory.
template <int kPanel>
void ExpectBox(Order order, int row, int column) {
  constexpr int kRows = 16;
  simt::SetOrder(order);
  const std::vector<BF16> matrix = RandomMatrix(20, 72);
  const CUtensorMap map = Describe(matrix, 20, 72, kRows, kPanel);
  std::vector<BF16> got(kRows * kPanel);
  Launch(32, [&] {
    unsigned char* const memory = AlignedShared();
    Mbarrier* const barrier = BarrierAt(memory, kRows * kPanel * 2);
    if (threadIdx.x == 0) {
      InitBarrier(barrier, 1);
      ArriveExpecting(barrier, kRows * kPanel * 2);
      StartBoxCopy(memory, map, {column, 0, row, 0}, barrier);
    }
    __syncthreads();
    WaitForPhase(barrier, 0);
    if (threadIdx.x == 0) std::memcpy(got.data(), memory, got.size() * sizeof(BF16));
  });
  constexpr int kChunks = kPanel / 8;  // of 16 bytes in a row
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kPanel; ++c) {
      // 128-byte rows: the chunk's number is xored with the row's; of 64-byte rows two lie in the
      // space of one, so that pairs of rows count.
      const int chunk = (c / 8) ^ (kPanel == 64 ? r % 8 : r / 2 % 4);
      ASSERT_LT(chunk, kChunks);
      const bool inside = row + r < 20 && column + c < 72;
      const float want = inside ? ToFloat(matrix[(row + r) * 72 + column + c]) : 0.0f;
      EXPECT_EQ(ToFloat(got[r * kPanel + chunk * 8 + c % 8]), want) << r << ' ' << c;
    }
  }
}

TEST(HopperTest, ABoxLiesInSharedMemoryWithItsChunksChangedAndZerosOutside) {
  for (Order order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    ExpectBox<64>(order, 0, 0);
    ExpectBox<64>(order, 7, 64);
    ExpectBox<32>(order, 3, 32);
    ExpectBox<32>(order, 19, 64);
  }
}

// Tiles of 64 x kDim and kRows x kDim through the copy engine, and both products with them.
template <typename T, int kDim, int kRows>
void ExpectProducts(Order order) {
  simt::SetOrder(order);
  constexpr int kA = PanelTileBytes(64, kDim), kB = PanelTileBytes(kRows, kDim);
  const std::vector<T> a = RandomMatrix<T>(64, kDim), b = RandomMatrix<T>(kRows, kDim);
  const CUtensorMap a_map = Describe(a, 64, kDim, 64, PanelColumns(kDim));
  const CUtensorMap b_map = Describe(b, kRows, kDim, kRows, PanelColumns(kDim));
  std::vector<float> scores(64 * kRows), sums(64 * kDim);
  Launch(128, [&] {
    unsigned char* const memory = AlignedShared();
    Mbarrier* const barrier = BarrierAt(memory, kA + kB);
    if (threadIdx.x == 0) {
      InitBarrier(barrier, 1);
      ArriveExpecting(barrier, kA + kB);
      StartTileCopy<64, kDim>(memory, a_map, 0, 0, 0, barrier);
      StartTileCopy<kRows, kDim>(memory + kA, b_map, 0, 0, 0, barrier);
    }
    __syncthreads();
    WaitForPhase(barrier, 0);
    float own[kRows / 8][4], out[kDim / 8][4] = {};
    uint32_t weights[kRows / 16][4];
    FenceProducts();
    StartProductByRows<T, kDim, 64, kRows>(SharedAddress(memory), 0, SharedAddress(memory + kA),
                                           own);
    CommitProducts();
    WaitForProducts<0>();
    const unsigned warp_row = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (unsigned n = 0; n < kRows / 8; ++n) {
      for (unsigned e = 0; e < 4; ++e) {
        scores[(warp_row + g + e / 2 * 8) * kRows + n * 8 + 2 * t + e % 2] = own[n][e];
        own[n][e] = std::fmod(own[n][e], 8.0f);  // exact in both types
      }
    }
    PackWeights<T, kRows / 8>(own, weights);
    FenceProducts();
    StartProductOfWeights<T, kDim, kRows>(weights, SharedAddress(memory + kA), out);
    CommitProducts();
    WaitForProducts<0>();
    for (unsigned n = 0; n < kDim / 8; ++n) {
      for (unsigned e = 0; e < 4; ++e) {
        sums[(warp_row + g + e / 2 * 8) * kDim + n * 8 + 2 * t + e % 2] = out[n][e];
      }
    }
  });
  for (int i = 0; i < 64; ++i) {
    std::vector<float> want_sums(kDim);
    for (int j = 0; j < kRows; ++j) {
      float want = 0;
      for (int c = 0; c < kDim; ++c) want += ToFloat(a[i * kDim + c]) * ToFloat(b[j * kDim + c]);
      ASSERT_EQ(scores[i * kRows + j], want) << i << ' ' << j;
      for (int c = 0; c < kDim; ++c) {
        want_sums[c] += std::fmod(want, 8.0f) * ToFloat(b[j * kDim + c]);
      }
    }
    for (int c = 0; c < kDim; ++c) ASSERT_EQ(sums[i * kDim + c], want_sums[c]) << i << ' ' << c;
  }
}

TEST(HopperTest, TilesOfAllHeadSizesMultiplyLikeMatrices) {
  for (Order order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    ExpectProducts<BF16, 64, 64>(order);
    ExpectProducts<BF16, 96, 128>(order);
    ExpectProducts<BF16, 128, 128>(order);
    ExpectProducts<F16, 64, 64>(order);
    ExpectProducts<F16, 96, 128>(order);
    ExpectProducts<F16, 128, 128>(order);
  }
}

TEST(HopperTest, APhaseIsCompleteWhenAllHaveArrivedAndAgainInTheNextRound) {
  for (Order order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    simt::SetOrder(order);
    int sum = 0;
    std::vector<int> seen(2);
    Launch(64, [&] {
      auto* const barriers = reinterpret_cast<Mbarrier*>(AlignedShared());
      if (threadIdx.x == 0) {
        InitBarrier(&barriers[0], 63);
        InitBarrier(&barriers[1], 1);
      }
      __syncthreads();
      for (unsigned round = 0; round < 2; ++round) {
        if (threadIdx.x == 0) {
          WaitForPhase(&barriers[0], round);
          seen[round] = sum;
          Arrive(&barriers[1]);
        } else {
          ++sum;
          Arrive(&barriers[0]);
          WaitForPhase(&barriers[1], round);
        }
      }
    });
    EXPECT_EQ(seen, (std::vector<int>{63, 126}));
  }
}

TEST(HopperTest, ANumberedBarrierOpensForThoseThatSyncWhenAllHaveArrived) {
  for (Order order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    simt::SetOrder(order);
    std::vector<int> turns;
    Launch(64, [&] {
      const bool second = threadIdx.x >= 32;
      if (second) Sync(1, 64);
      if (threadIdx.x % 32 == 0) turns.push_back(second ? 2 : 1);
      if (!second) ArriveAt(1, 64);
    });
    EXPECT_EQ(turns, (std::vector<int>{1, 2}));
  }
}

// What a product of 64 x 64 with garbage in shared memory needs, but for what the test leaves out.
struct Misuse {
  bool fences = true, waits = true, touches = false, parts = false;
};
void RunMisused(const Misuse& misuse) {
  simt::SetOrder(Order::kBackward);
  Launch(128, [&] {
    float sums[8][4] = {};
    const uint32_t at = SharedAddress(AlignedShared());
    const uint32_t b = at + (misuse.parts && threadIdx.x >= 64 ? 1024 : 0);
    if (misuse.fences) FenceProducts();
    StartSharedProduct<BF16, 64>(DescribeMatrix<128>(at, kNoLeading),
                                 DescribeMatrix<128>(b, kNoLeading), 0, sums);
    CommitProducts();
    if (misuse.touches) sums[3][1] = 0;
    if (misuse.waits) WaitForProducts<0>();
  });
}

TEST(HopperDeathTest, MisusedProductsEndTheProcess) {
  RunMisused({});
  EXPECT_DEATH(RunMisused({.fences = false}), "without a fence");
  EXPECT_DEATH(RunMisused({.waits = false}), "a thread ended before its matrix products");
  EXPECT_DEATH(RunMisused({.touches = true}), "sums were touched");
  EXPECT_DEATH(RunMisused({.parts = true}), "start different matrix products");
}

TEST(HopperDeathTest, MisusedBarriersEndTheProcess) {
  simt::SetOrder(Order::kForward);
  const auto barrier = [] { return reinterpret_cast<Mbarrier*>(AlignedShared()); };
  EXPECT_DEATH(Launch(32, [&] { Arrive(barrier()); }), "never initialised");
  EXPECT_DEATH(Launch(32, [&] { InitBarrier(barrier(), 1); }), "initialised twice");
  EXPECT_DEATH(Launch(32,
                      [&] {
                        if (threadIdx.x == 0) InitBarrier(barrier(), 1);
                        __syncthreads();
                        WaitForPhase(barrier(), 0);
                      }),
               "wait at a barrier that others never reach");
  EXPECT_DEATH(Launch(32, [&] { ArriveAt(1, 64); }), "half full");
}

}  // namespace
}  // namespace terrace::kernels::cuda
