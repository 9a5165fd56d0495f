// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_eject.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/compiler/pack_cells.h"
#include "coordinator/compiler/pack_orders.h"
#include "tests/unit/coordinator/compiler/pack_data.h"
#include "tests/unit/coordinator/compiler/pack_tiny.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 1'000'000;

TEST(PackCellsTest, OneSizeThatDividesTheOthersIsTheCell) {
  const PackProblem problem =
      MakePackProblem({{{.name = "a", .bytes = 3072, .begin = 0, .end = 2},
                        {.name = "b", .bytes = 2048, .begin = 0, .end = 3},
                        {.name = "c", .bytes = 5120, .begin = 2, .end = 4}}});
  const PackCells cells = MakePackCells(problem, 8192, 90);
  EXPECT_EQ(cells.cell_bytes, 1024);
  EXPECT_EQ(cells.cells, 8);
  EXPECT_EQ(cells.large.size(), 3u);
  EXPECT_EQ(cells.small_bytes, 0);
}

TEST(PackCellsTest, FinerCellsLeaveMoreRoomWhereSizesShareNone) {
  const PackProblem problem =
      MakePackProblem({{{.name = "a", .bytes = 3 << 20, .begin = 0, .end = 2},
                        {.name = "b", .bytes = (1 << 20) + (1 << 18), .begin = 0, .end = 2}}});
  const int64_t ceiling = problem.lower_bound_bytes + (1 << 20);
  const PackCells coarse = MakePackCells(problem, ceiling, 50);
  const PackCells fine = MakePackCells(problem, ceiling, 100);
  EXPECT_GT(coarse.cell_bytes, fine.cell_bytes);
  EXPECT_EQ((1 << 18) % fine.cell_bytes, 0);
}

TEST(PackCellsTest, SmallItemsShareARegionOfTheirOwn) {
  std::vector<PackBuffer> buffers;
  for (int64_t i = 0; i < 8; ++i) {
    buffers.push_back({.name = "large", .bytes = 1 << 20, .begin = i, .end = i + 4});
    buffers.push_back({.name = "small", .bytes = 256, .begin = i, .end = i + 2});
  }
  const PackProblem problem = MakePackProblem(buffers);
  const PackCells cells = MakePackCells(problem, (4 << 20) + 512, 90);
  EXPECT_EQ(cells.cell_bytes, 1 << 20);
  EXPECT_EQ(cells.cells, 4);
  EXPECT_EQ(cells.small.size(), 8u);
  EXPECT_EQ(cells.small_bytes, 512);
}

TEST(PackCellsTest, BelowTheBoundThereIsNoGrid) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const PackProblem problem = MakePackProblem(RandomTinyBuffers(seed, 7));
    EXPECT_EQ(MakePackCells(problem, problem.lower_bound_bytes - 1, 90).cell_bytes, 0);
    EXPECT_TRUE(PackByEjection(problem, problem.lower_bound_bytes - 1, kSteps).offsets.empty());
  }
}

TEST(PackEjectTest, TinyProblemsArePackedBelowTheirOptimum) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto buffers = RandomTinyBuffers(seed, 7);
    const PackProblem problem = MakePackProblem(buffers);
    const int64_t optimum = OptimumByAllOrders(problem);
    const PackPlacement placement = PackByEjection(problem, optimum, kSteps);
    ASSERT_EQ(placement.offsets.size(), buffers.size());
    EXPECT_EQ(FirstOverlap(buffers, {.offsets = placement.offsets}), "");
    int64_t top = 0;
    for (size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_GE(placement.offsets[i], 0);
      EXPECT_EQ(placement.offsets[i] % kPackAlignment, 0);
      top = std::max(top, placement.offsets[i] + problem.items[i].bytes);
    }
    EXPECT_EQ(placement.arena_bytes, top);
    EXPECT_LE(placement.arena_bytes, optimum);
    EXPECT_EQ(PackByEjection(problem, optimum, kSteps).offsets, placement.offsets);
  }
}

TEST(PackEjectTest, WhatCannotBeFoundEndsWithItsSteps) {
  const PackProblem problem = MakePackProblem(RandomTinyBuffers(kSeedWithoutPackingAtTheBound, 9));
  EXPECT_TRUE(PackByEjection(problem, problem.lower_bound_bytes, kSteps).offsets.empty());
}

// Below the ceiling that Pack sets; not empty where it was found.
PackPlacement EjectStage(const std::string& name, int64_t steps) {
  const auto [buffers, persistent] = ReadPackStage(TERRACE_PACK_DATA "/" + name + ".csv");
  EXPECT_GT(buffers.size(), 500u) << name;
  if (buffers.empty()) return {};
  const PackProblem problem = MakePackProblem(buffers);
  const int64_t bound = problem.lower_bound_bytes;
  const int64_t ceiling = bound + (persistent + bound) / 10'000 * 98;
  PackPlacement placement = PackByEjection(problem, ceiling, steps);
  if (!placement.offsets.empty()) {
    EXPECT_EQ(FirstOverlap(buffers, {.offsets = placement.offsets}), "") << name;
    EXPECT_LE(placement.arena_bytes, ceiling) << name;
  }
  return placement;
}

// Stages that no order and no ceiling brings below 1 % of their arena.
TEST(PackEjectTest, StagesThatNoOrderPacksAreWithinOnePercentOfTheirArena) {
  for (const char* name :
       {"gpt2_zbh1_zero1_none", "gpt2_zbh1_none_stage1", "llama16_zbh1_sqrt_stage1",
        "gpt2_zbh1_selective_1x16_stage2", "gpt2_zbh1_zero3_selective_stage2"}) {
    EXPECT_FALSE(EjectStage(name, 170'000'000).offsets.empty()) << name;
  }
}

// Sixteen micro-batches, of which one by one no try of these steps fits.
TEST(PackEjectTest, AStageOfManyMicroBatchesIsPackedInChains) {
  EXPECT_FALSE(EjectStage("gpt2_zbh1_selective_1x16_stage3", 170'000'000).offsets.empty());
}

TEST(PackEjectTest, WithoutStepsNothingIsFound) {
  const PackProblem problem = MakePackProblem(RandomTinyBuffers(1, 7));
  EXPECT_TRUE(PackByEjection(problem, 2 * problem.lower_bound_bytes, 0).offsets.empty());
}

}  // namespace
}  // namespace terrace
