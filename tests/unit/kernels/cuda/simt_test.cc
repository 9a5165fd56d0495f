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
  BF16 a[16 * 24], by_rows[8 * 24], as_it_is[16 * 16];
  float want[16][8] = {}, want_rows[16][8] = {};
  for (auto& value : a) value = ToBF16(static_cast<float>(random() % 17) - 8);
  for (auto& value : by_rows) value = ToBF16(static_cast<float>(random() % 17) - 8);
  for (auto& value : as_it_is) value = ToBF16(static_cast<float>(random() % 17) - 8);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      for (int k = 0; k < 16; ++k) {
        want[i][j] += ToFloat(a[i * 24 + k]) * ToFloat(by_rows[j * 24 + k]);
        want_rows[i][j] += ToFloat(a[i * 24 + k]) * ToFloat(as_it_is[k * 16 + j]);
      }
    }
  }
  float got[16][8], got_rows[16][8];
  Launch(1, 32, [&] {
    uint32_t fragment[4], other[2];
    float c[4] = {}, c_rows[4] = {};
    LoadA({a, 24}, 0, 0, fragment);
    LoadB({by_rows, 24}, 0, 0, other);
    MultiplyFragments(fragment, other, c);
    LoadBRows({as_it_is, 16}, 0, 0, other);
    MultiplyFragments(fragment, other, c_rows);
    for (unsigned e = 0; e < 4; ++e) {
      const unsigned row = threadIdx.x / 4 + e / 2 * 8, column = threadIdx.x % 4 * 2 + e % 2;
      got[row][column] = c[e];
      got_rows[row][column] = c_rows[e];
    }
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      EXPECT_EQ(got[i][j], want[i][j]) << i << ' ' << j;
      EXPECT_EQ(got_rows[i][j], want_rows[i][j]) << i << ' ' << j;
    }
  }
}

}  // namespace
}  // namespace terrace::kernels::cuda
