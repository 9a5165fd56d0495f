// What the host execution of kernels shows and does not: barriers, orders of threads, exchanges of
// lanes, and the arithmetic of the matrix instruction.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "kernels/cuda/warp.cuh"

namespace terrace::kernels::cuda {
namespace {

using simt::Order;

void Launch(unsigned blocks, unsigned threads, const std::function<void()>& thread) {
  simt::Run(dim3(blocks), dim3(threads), 1024, thread);
}

TEST(SimtTest, EveryThreadOfEveryBlockRunsOnce) {
  for (Order order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    simt::SetOrder(order);
    std::vector<int> runs(3 * 70);
    Launch(3, 70, [&] { ++runs[blockIdx.x * blockDim.x + threadIdx.x]; });
    EXPECT_EQ(runs, std::vector<int>(3 * 70, 1));
  }
}

// Each thread reads what its neighbour writes; returns what the block got.
std::vector<int> ReadNeighbour(Order order, bool waits) {
  simt::SetOrder(order);
  std::vector<int> memory(64, -1), got(64);
  Launch(1, 64, [&] {
    memory[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (waits) __syncthreads();
    got[threadIdx.x] = memory[(threadIdx.x + 1) % 64];
  });
  return got;
}

TEST(SimtTest, AMissingBarrierShowsAsAResultThatDependsOnTheOrder) {
  EXPECT_EQ(ReadNeighbour(Order::kForward, true), ReadNeighbour(Order::kBackward, true));
  EXPECT_EQ(ReadNeighbour(Order::kForward, true), ReadNeighbour(Order::kShuffled, true));
  EXPECT_NE(ReadNeighbour(Order::kForward, false), ReadNeighbour(Order::kBackward, false));
}

TEST(SimtDeathTest, ABarrierThatOthersNeverReachEndsTheProcess) {
  simt::SetOrder(Order::kForward);
  EXPECT_DEATH(Launch(1, 64,
                      [] {
                        if (threadIdx.x < 40) __syncthreads();
                      }),
               "wait at a barrier that others never reach");
}

// Copies a row into shared memory and reads it back; returns what the block got.
std::vector<float> CopyRow(Order order, bool waits) {
  simt::SetOrder(order);
  alignas(16) float row[128] = {};
  std::vector<float> got(64);
  for (int i = 0; i < 128; ++i) row[i] = static_cast<float>(i);
  Launch(1, 32, [&] {
    auto* to = reinterpret_cast<float*>(DynamicShared());
    const unsigned first = 4 * threadIdx.x;
    StartCopy(to + first, row + first, threadIdx.x < 8);
    if (waits) FinishCopies();
    __syncthreads();
    got[2 * threadIdx.x] = to[2 * threadIdx.x];
    got[2 * threadIdx.x + 1] = to[2 * threadIdx.x + 1];
    FinishCopies();
  });
  return got;
}

TEST(SimtTest, ACopyIsThereForTheBlockWhenItsThreadHasWaitedForIt) {
  std::vector<float> want(64);
  for (size_t i = 0; i < 32; ++i) want[i] = static_cast<float>(i);
  for (Order order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    EXPECT_EQ(CopyRow(order, true), want) << "zeros from the ninth copy on";
  }
  EXPECT_NE(CopyRow(Order::kBackward, false), want);
}

TEST(SimtDeathTest, ACopyThatNobodyWaitsForEndsTheProcess) {
  simt::SetOrder(Order::kBackward);
  alignas(16) const float row[4] = {};
  EXPECT_DEATH(Launch(1, 32, [&] { StartCopy(DynamicShared(), row, true); }),
               "a thread ended before its copies");
}

TEST(SimtTest, SumsOverABlockAreTheSameInEveryThread) {
  for (unsigned threads : {32u, 128u, 256u}) {
    std::vector<float> sums(threads);
    simt::SetOrder(Order::kShuffled);
    Launch(1, threads, [&] {
      const float first = BlockSum(static_cast<float>(threadIdx.x));
      const float second = BlockSum(1.0f);
      sums[threadIdx.x] = first + 1000000 * second;
    });
    const float want = static_cast<float>(threads * (threads - 1) / 2 + 1000000 * threads);
    EXPECT_EQ(sums, std::vector<float>(threads, want));
  }
}

TEST(SimtTest, FragmentsMultiplyLikeMatrices) {
  std::mt19937 random(1);
  alignas(16) BF16 a[16 * 24], by_rows[16 * 24], as_it_is[16 * 24];
  float want[16][16] = {}, want_rows[16][16] = {};
  for (auto* matrix : {a, by_rows, as_it_is}) {
    for (int i = 0; i < 16 * 24; ++i) matrix[i] = ToBF16(static_cast<float>(random() % 17) - 8);
  }
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      for (int k = 0; k < 16; ++k) {
        want[i][j] += ToFloat(a[i * 24 + k]) * ToFloat(by_rows[j * 24 + k]);
        want_rows[i][j] += ToFloat(a[i * 24 + k]) * ToFloat(as_it_is[k * 24 + j]);
      }
    }
  }
  float got[16][16], got_rows[16][16];
  Launch(1, 32, [&] {
    uint32_t fragment[4], other[4];
    float c[2][4] = {}, c_rows[2][4] = {};
    LoadA({a, 24}, 0, 0, fragment);
    LoadTwoB({by_rows, 24}, 0, 0, other);
    for (int n = 0; n < 2; ++n) MultiplyFragments(fragment, other + 2 * n, c[n]);
    LoadTwoBRows({as_it_is, 24}, 0, 0, other);
    for (int n = 0; n < 2; ++n) MultiplyFragments(fragment, other + 2 * n, c_rows[n]);
    for (unsigned e = 0; e < 8; ++e) {
      const unsigned row = threadIdx.x / 4 + e % 4 / 2 * 8;
      const unsigned column = e / 4 * 8 + threadIdx.x % 4 * 2 + e % 2;
      got[row][column] = c[e / 4][e % 4];
      got_rows[row][column] = c_rows[e / 4][e % 4];
    }
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      EXPECT_EQ(got[i][j], want[i][j]) << i << ' ' << j;
      EXPECT_EQ(got_rows[i][j], want_rows[i][j]) << i << ' ' << j;
    }
  }
}

}  // namespace
}  // namespace terrace::kernels::cuda
