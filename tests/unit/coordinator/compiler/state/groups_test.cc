// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/groups.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace::compiler {
namespace {

// Of rank 0; empty for a group that does not exist.
std::vector<uint32_t> Members(const TinyStage& stage, int group) {
  if (group == kNone) return {};
  return GroupMembers(stage.parallel.grid, stage.graph.groups.at(group), 0);
}

TEST(GroupsTest, OneRankHasNoGroups) {
  const TinyStage stage({.family = "qwen3"});
  EXPECT_TRUE(stage.graph.groups.empty());
}

TEST(GroupsTest, AxesOfOneRankMakeNoGroup) {
  const TinyStage stage({.data_parallel = 4});
  const Groups& groups = stage.parallel.groups;
  EXPECT_EQ(Members(stage, groups.data).size(), 4u);
  EXPECT_EQ(Members(stage, groups.totals).size(), 4u);
  for (int none : {groups.tensor, groups.tensor_block, groups.context, groups.shard, groups.replica,
                   groups.model, groups.tied, groups.forward, groups.backward}) {
    EXPECT_EQ(none, kNone);
  }
}

// rank = ((stage * dp + data) * cp + context) * tp + tensor
TEST(GroupsTest, GradientsAreSummedOverDataAndContextRanks) {
  const TinyStage stage({.family = "llama",
                         .data_parallel = 2,
                         .tensor_parallel = 2,
                         .pipeline_parallel = 2,
                         .context_parallel = 2});
  const Groups& groups = stage.parallel.groups;
  EXPECT_EQ(Members(stage, groups.tensor), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(Members(stage, groups.context), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(Members(stage, groups.data), (std::vector<uint32_t>{0, 2, 4, 6}));
  EXPECT_EQ(Members(stage, groups.model), (std::vector<uint32_t>{0, 1, 8, 9}));
  EXPECT_EQ(Members(stage, groups.totals), (std::vector<uint32_t>{0, 2, 4, 6, 8, 10, 12, 14}));
  EXPECT_EQ(Members(stage, groups.forward), (std::vector<uint32_t>{0, 8}));
}

TEST(GroupsTest, ShardsArePartOfTheModelAndReplicasAreNot) {
  const TinyStage stage(
      {.data_parallel = 4, .context_parallel = 2, .zero_stage = 2, .shard_size = 2});
  const Groups& groups = stage.parallel.groups;
  EXPECT_EQ(Members(stage, groups.shard), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(Members(stage, groups.replica), (std::vector<uint32_t>{0, 4}));
  EXPECT_EQ(Members(stage, groups.model), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(groups.data, kNone);
}

TEST(GroupsTest, CodesOfGradientsAreExchangedInABlockAndBetweenBlocks) {
  const TinyStage stage({.data_parallel = 4,
                         .context_parallel = 2,
                         .zero_stage = 2,
                         .reduce_format = "int4",
                         .reduce_block = 2});
  const Groups& groups = stage.parallel.groups;
  EXPECT_EQ(Members(stage, groups.near), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(Members(stage, groups.far), (std::vector<uint32_t>{0, 4}));
  const TinyStage plain({.data_parallel = 4, .zero_stage = 2, .reduce_format = "int4"});
  EXPECT_EQ(plain.parallel.groups.near, kNone);
  EXPECT_EQ(plain.parallel.groups.far, kNone);
}

TEST(GroupsTest, ATiedTableJoinsTheFirstStageAndTheLast) {
  const TinySizes sizes = {.layers = 8};
  const TinyStage plain({.pipeline_parallel = 4, .sizes = sizes});
  const v1::Group& tied = plain.graph.groups.at(plain.parallel.groups.tied);
  EXPECT_EQ(GroupMembers(plain.parallel.grid, tied, 0), (std::vector<uint32_t>{0, 3}));
  EXPECT_TRUE(GroupMembers(plain.parallel.grid, tied, 1).empty());
  // In V shape the last chunk is on the first stage.
  const TinyStage v({.pipeline_parallel = 4, .schedule = "zbv", .sizes = sizes});
  EXPECT_EQ(v.parallel.groups.tied, kNone);
  const TinyStage untied({.family = "llama", .pipeline_parallel = 4, .sizes = sizes});
  EXPECT_EQ(untied.parallel.groups.tied, kNone);
}

TEST(GroupsTest, ChunksCoverTheLayersInOrder) {
  v1::Layout layout = TinyLayout({.pipeline_parallel = 3, .schedule = "interleaved"});
  layout.set_interleave(2);
  const std::vector<ChunkRange> chunks = SplitLayers(layout, 13);
  ASSERT_EQ(chunks.size(), 6u);
  int end = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i].begin, end);
    EXPECT_GT(chunks[i].end, chunks[i].begin);
    EXPECT_EQ(chunks[i].first, i == 0);
    EXPECT_EQ(chunks[i].last, i == 5);
    end = chunks[i].end;
  }
  EXPECT_EQ(end, 13);
  for (uint32_t layers : {1, 4, 1, 2, 2, 3}) layout.add_stage_layers(layers);
  EXPECT_EQ(SplitLayers(layout, 13)[1].begin, 1);
  EXPECT_EQ(SplitLayers(layout, 13)[1].end, 5);
}

}  // namespace
}  // namespace terrace::compiler
