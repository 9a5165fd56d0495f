// SPDX-License-Identifier: Apache-2.0
#include "proto/program/grid.h"

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Grid MakeGrid(uint32_t tensor, uint32_t context, uint32_t shard, uint32_t replica,
                  uint32_t pipeline) {
  v1::Grid grid;
  grid.set_tensor(tensor);
  grid.set_context(context);
  grid.set_data_shard(shard);
  grid.set_data_replica(replica);
  grid.set_pipeline(pipeline);
  return grid;
}

v1::Grid RandomGrid(std::mt19937* random) {
  const auto size = [&] { return 1 + (*random)() % 4; };
  return MakeGrid(size(), size(), size(), size(), size());
}

v1::Group MakeGroup(std::initializer_list<v1::Axis> axes) {
  v1::Group group;
  for (const v1::Axis axis : axes) group.add_axes(axis);
  return group;
}

TEST(GridTest, RanksAreNumberedWithTensorFastestAndPipelineSlowest) {
  const v1::Grid grid = MakeGrid(2, 3, 5, 7, 11);
  EXPECT_EQ(RanksOf(grid), 2u * 3 * 5 * 7 * 11);
  const Coordinates place = {.tensor = 1, .context = 2, .shard = 3, .replica = 4, .stage = 6};
  EXPECT_EQ(RankOf(grid, place), (((6u * 7 + 4) * 5 + 3) * 3 + 2) * 2 + 1);
}

TEST(GridTest, RankAndCoordinatesAreInverse) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const v1::Grid grid = RandomGrid(&random);
    for (uint32_t rank = 0; rank < RanksOf(grid); ++rank) {
      const Coordinates place = CoordinatesOf(grid, rank);
      ASSERT_EQ(RankOf(grid, place), rank);
      ASSERT_LT(place.tensor, grid.tensor());
      ASSERT_LT(place.context, grid.context());
      ASSERT_LT(place.shard, grid.data_shard());
      ASSERT_LT(place.replica, grid.data_replica());
      ASSERT_LT(place.stage, grid.pipeline());
    }
  }
}

TEST(GridTest, AProgramWithoutAGridIsForOneRank) {
  EXPECT_EQ(RanksOf(v1::Grid()), 1u);
  EXPECT_EQ(CoordinatesOf(v1::Grid(), 0), Coordinates());
  EXPECT_EQ(ShardCount(v1::Grid()), 1u);
  EXPECT_THAT(GroupMembers(v1::Grid(), MakeGroup({v1::TENSOR, v1::PIPELINE}), 0), ElementsAre(0));
  EXPECT_EQ(Describe(v1::Grid(), {}), "the only rank");
}

TEST(GridTest, RanksOfOneDataIndexDifferInNeitherShardNorReplica) {
  const v1::Grid grid = MakeGrid(2, 2, 3, 2, 2);
  std::set<uint32_t> indices;
  for (uint32_t a = 0; a < RanksOf(grid); ++a) {
    const Coordinates x = CoordinatesOf(grid, a);
    indices.insert(DataIndex(grid, x));
    for (uint32_t b = 0; b < RanksOf(grid); ++b) {
      const Coordinates y = CoordinatesOf(grid, b);
      ASSERT_EQ(DataIndex(grid, x) == DataIndex(grid, y),
                x.shard == y.shard && x.replica == y.replica);
      ASSERT_EQ(ShardIndex(grid, x) == ShardIndex(grid, y),
                x.shard == y.shard && x.context == y.context);
    }
    ASSERT_LT(ShardIndex(grid, x), ShardCount(grid));
  }
  EXPECT_EQ(indices.size(), 6u);
  EXPECT_EQ(*indices.rbegin(), 5u);
  EXPECT_EQ(ShardCount(grid), 6u);
}

// The place of a rank among those that share its shards is its place in the group of these axes.
TEST(GridTest, ShardIndexIsTheRankInItsGroup) {
  std::mt19937 random(2);
  const v1::Group group = MakeGroup({v1::CONTEXT, v1::DATA_SHARD});
  for (int round = 0; round < 20; ++round) {
    const v1::Grid grid = RandomGrid(&random);
    for (uint32_t rank = 0; rank < RanksOf(grid); ++rank) {
      const std::vector<uint32_t> members = GroupMembers(grid, group, rank);
      ASSERT_EQ(members.size(), ShardCount(grid));
      ASSERT_EQ(members[ShardIndex(grid, CoordinatesOf(grid, rank))], rank);
    }
  }
}

TEST(GroupTest, MembersDifferInTheAxesOfTheGroupOnly) {
  const v1::Grid grid = MakeGrid(2, 1, 2, 2, 2);
  EXPECT_THAT(GroupMembers(grid, MakeGroup({v1::TENSOR}), 5), ElementsAre(4, 5));
  EXPECT_THAT(GroupMembers(grid, MakeGroup({v1::DATA_SHARD}), 5), ElementsAre(5, 7));
  EXPECT_THAT(GroupMembers(grid, MakeGroup({v1::DATA_SHARD, v1::DATA_REPLICA}), 5),
              ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(GroupMembers(grid, MakeGroup({v1::PIPELINE}), 5), ElementsAre(5, 13));
  EXPECT_THAT(GroupMembers(grid, MakeGroup({}), 5), ElementsAre(5));
}

TEST(GroupTest, StagesThatAreNotNamedTakeNoPart) {
  const v1::Grid grid = MakeGrid(2, 1, 1, 1, 3);
  v1::Group ends = MakeGroup({v1::PIPELINE});
  ends.add_stages(2);
  ends.add_stages(0);
  EXPECT_THAT(GroupMembers(grid, ends, 1), ElementsAre(1, 5));
  EXPECT_THAT(GroupMembers(grid, ends, 5), ElementsAre(1, 5));
  EXPECT_THAT(GroupMembers(grid, ends, 3), IsEmpty());
  EXPECT_EQ(GroupSize(grid, ends), 2u);
  EXPECT_FALSE(HasStage(ends, 1));
}

TEST(GroupTest, ABlockOfTensorRanksIsAGroupOfItsOwn) {
  const v1::Grid grid = MakeGrid(4, 1, 1, 1, 1);
  v1::Group block = MakeGroup({v1::TENSOR});
  block.set_tensor_block(2);
  EXPECT_THAT(GroupMembers(grid, block, 0), ElementsAre(0, 1));
  EXPECT_THAT(GroupMembers(grid, block, 3), ElementsAre(2, 3));
  EXPECT_EQ(GroupSize(grid, block), 2u);
}

// Of 6 shards: those of a block of 2, and those that have one place in their blocks.
TEST(GroupTest, BlocksOfShardsAndWhatHasOnePlaceInThemAreGroups) {
  const v1::Grid grid = MakeGrid(1, 2, 6, 1, 1);
  v1::Group near = MakeGroup({v1::CONTEXT, v1::DATA_SHARD}), far = MakeGroup({v1::DATA_SHARD});
  near.set_shard_block(2);
  far.set_shard_stride(2);
  EXPECT_THAT(GroupMembers(grid, near, 5), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(GroupMembers(grid, far, 5), ElementsAre(1, 5, 9));
  EXPECT_EQ(GroupSize(grid, near), 4u);
  EXPECT_EQ(GroupSize(grid, far), 3u);
  EXPECT_EQ(MembersOn(grid, near, v1::CONTEXT), 2u);
  EXPECT_EQ(MembersOn(grid, far, v1::CONTEXT), 1u);
  // The place among all of them is the block's, then that in the block.
  for (uint32_t rank = 0; rank < RanksOf(grid); ++rank) {
    const auto place = [&](const v1::Group& group) {
      const std::vector<uint32_t> members = GroupMembers(grid, group, rank);
      return std::find(members.begin(), members.end(), rank) - members.begin();
    };
    EXPECT_EQ(place(far) * 4 + place(near), ShardIndex(grid, CoordinatesOf(grid, rank)));
  }
}

// Whatever the group: every rank that takes part is in exactly one instance, all its members list
// the same ones in order, and each instance has the announced size.
TEST(GroupTest, InstancesDivideTheRanks) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const v1::Grid grid = RandomGrid(&random);
    v1::Group group;
    for (int axis = v1::TENSOR; axis <= v1::PIPELINE; ++axis) {
      if (random() % 2 == 0) group.add_axes(static_cast<v1::Axis>(axis));
    }
    if (HasAxis(group, v1::PIPELINE) && random() % 2 == 0) {
      const uint32_t first = random() % grid.pipeline();
      for (uint32_t stage = first; stage < grid.pipeline(); ++stage) group.add_stages(stage);
    }
    if (HasAxis(group, v1::TENSOR) && grid.tensor() % 2 == 0) group.set_tensor_block(2);
    if (HasAxis(group, v1::DATA_SHARD) && grid.data_shard() % 2 == 0) {
      if (random() % 2 == 0) {
        group.set_shard_block(2);
      } else {
        group.set_shard_stride(2);
      }
    }
    SCOPED_TRACE(grid.ShortDebugString() + " " + group.ShortDebugString());
    for (uint32_t rank = 0; rank < RanksOf(grid); ++rank) {
      const std::vector<uint32_t> members = GroupMembers(grid, group, rank);
      if (!HasStage(group, CoordinatesOf(grid, rank).stage)) {
        ASSERT_THAT(members, IsEmpty());
        continue;
      }
      ASSERT_EQ(members.size(), GroupSize(grid, group));
      ASSERT_TRUE(std::is_sorted(members.begin(), members.end()));
      ASSERT_EQ(std::count(members.begin(), members.end(), rank), 1);
      for (const uint32_t member : members) ASSERT_EQ(GroupMembers(grid, group, member), members);
    }
  }
}

TEST(DescribeTest, OnlyAxesLargerThanOneAreNamed) {
  EXPECT_EQ(Describe(MakeGrid(2, 1, 2, 2, 3), {.tensor = 1, .shard = 1, .replica = 1, .stage = 2}),
            "dp3 stage2 tp1");
  EXPECT_EQ(Describe(MakeGrid(1, 4, 1, 1, 1), {.context = 3}), "cp3");
}

}  // namespace
}  // namespace terrace
