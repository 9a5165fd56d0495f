// Where there is room nothing is packed better than it takes: whatever was packed with a single
// order cost no search.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "coordinator/compiler/pack.h"
#include "coordinator/compiler/pack_orders.h"
#include "tests/unit/coordinator/compiler/pack_data.h"

namespace terrace {
namespace {

// Orders leave more than 1 % of the arena of it, ejections do not.
PackStage HardStage() { return ReadPackStage(TERRACE_PACK_DATA "/llama16_zbh1_sqrt_stage1.csv"); }

Packing PackedIn(const PackStage& stage, const PackRoom& room) {
  const auto packing = Pack(stage.buffers, PackEffort::kFull, stage.persistent_bytes, room);
  EXPECT_TRUE(packing.ok()) << packing.status();
  return packing.value_or(Packing{});
}

// By order of the portfolio.
std::vector<PackPlacement> Greedy(const PackStage& stage) {
  const PackProblem problem = MakePackProblem(stage.buffers);
  std::vector<PackPlacement> placements;
  for (const PackStrategy& strategy : PackPortfolio()) {
    placements.push_back(PlaceInOrder(problem, MakePackOrder(problem, strategy)));
  }
  return placements;
}

bool IsOneOf(const std::vector<PackPlacement>& placements, const Packing& packing) {
  return std::any_of(placements.begin(), placements.end(),
                     [&](const PackPlacement& one) { return one.offsets == packing.offsets; });
}

TEST(PackRoomTest, WithRoomTheBestOfTheOrdersDoes) {
  const PackStage stage = HardStage();
  const std::vector<PackPlacement> greedy = Greedy(stage);
  const Packing searched = PackedIn(stage, {});
  const Packing roomy = PackedIn(stage, {.bytes = int64_t{1} << 40});
  EXPECT_FALSE(IsOneOf(greedy, searched));
  ASSERT_TRUE(IsOneOf(greedy, roomy));
  const int64_t bound = stage.persistent_bytes + roomy.lower_bound_bytes;
  EXPECT_LE(roomy.arena_bytes - roomy.lower_bound_bytes, bound / 50);
  EXPECT_GT(roomy.arena_bytes - roomy.lower_bound_bytes, bound / 100);
  int64_t best = std::numeric_limits<int64_t>::max();
  for (const PackPlacement& one : greedy) best = std::min(best, one.arena_bytes);
  EXPECT_EQ(roomy.arena_bytes, best);
}

TEST(PackRoomTest, WithTooLittleRoomNothingIsLeftUntried) {
  const PackStage stage = HardStage();
  const Packing searched = PackedIn(stage, {});
  const Packing tight = PackedIn(stage, {.bytes = searched.lower_bound_bytes});
  EXPECT_EQ(tight.offsets, searched.offsets);
}

TEST(PackRoomTest, OnlyToFitTheFirstOrderThatFitsDoes) {
  const PackStage stage = HardStage();
  const std::vector<PackPlacement> greedy = Greedy(stage);
  const Packing any = PackedIn(stage, {.bytes = int64_t{1} << 40, .only_to_fit = true});
  EXPECT_EQ(any.offsets, greedy[0].offsets);
}

}  // namespace
}  // namespace terrace
