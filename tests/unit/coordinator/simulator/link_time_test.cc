// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/link_time.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

// Inside a node 100 bytes a second, between nodes 10 a device; no latency.
v1::HardwareProfile TwoScopes(uint32_t ranks_per_node) {
  v1::HardwareProfile profile;
  profile.set_ranks_per_node(ranks_per_node);
  v1::LinkRate* node = profile.add_links();
  node->set_scope("node");
  node->set_bytes_per_second(100);
  v1::LinkRate* network = profile.add_links();
  network->set_scope("network");
  network->set_bytes_per_second(10);
  return profile;
}

v1::Grid GridOf(uint32_t tensor, uint32_t shard, uint32_t pipeline) {
  v1::Grid grid;
  grid.set_tensor(tensor);
  grid.set_data_shard(shard);
  grid.set_pipeline(pipeline);
  return grid;
}

TEST(LinkTimeTest, AGroupInsideANodeUsesTheNodesLink) {
  const Spread spread = SpreadOf(4, 1, 8);
  EXPECT_EQ(spread.nodes(), 1u);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 400, spread, TwoScopes(8)), 3.0);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_REDUCE, 400, spread, TwoScopes(8)), 6.0);
}

TEST(LinkTimeTest, ARingOverNodesUsesAsManyNetworkLinksAsItHasMembersInANode) {
  const v1::HardwareProfile profile = TwoScopes(8);
  const Spread packed = SpreadOf(16, 1, 8), strided = SpreadOf(16, 8, 8);
  EXPECT_EQ(packed.in_node, 8u);
  EXPECT_EQ(strided.in_node, 1u);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 160, packed, profile), 150.0 / 80);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 160, strided, profile), 150.0 / 10);
}

TEST(LinkTimeTest, ManyNetworkLinksAreNoFasterThanTheNodes) {
  v1::HardwareProfile profile = TwoScopes(64);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 128, SpreadOf(128, 1, 64), profile),
                   127.0 / 100);
}

TEST(LinkTimeTest, SmallSumsOverManyNodesGoUpATree) {
  v1::HardwareProfile profile = TwoScopes(1);
  profile.mutable_links(1)->set_latency_seconds(1);
  // 10 levels up and down, not 1023 hops twice.
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_REDUCE, 0, SpreadOf(1024, 1, 1), profile), 20.0);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 0, SpreadOf(1024, 1, 1), profile), 1023.0);
}

TEST(LinkTimeTest, WithoutScopesTheOneLinkHolds) {
  v1::HardwareProfile profile;
  profile.set_link_bytes_per_second(50);
  profile.set_link_latency_seconds(2);
  EXPECT_DOUBLE_EQ(TransferSeconds(100, true, profile), 4.0);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 100, SpreadOf(2, 1, 0), profile), 3.0);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 100, SpreadOf(1, 1, 0), profile), 0.0);
}

TEST(LinkTimeTest, TheLinkOfAGroupIsTheOneMeasuredWithAsManyMembers) {
  v1::HardwareProfile profile;
  for (const uint32_t ranks : {4u, 2u}) {
    v1::LinkRate* rate = profile.add_links();
    rate->set_scope("node");
    rate->set_ranks(ranks);
    rate->set_bytes_per_second(100.0 / ranks);
  }
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 100, SpreadOf(2, 1, 0), profile), 1.0);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 100, SpreadOf(4, 1, 0), profile), 3.0);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(v1::ALL_GATHER, 100, SpreadOf(8, 1, 0), profile), 3.5);
}

TEST(LinkTimeTest, AGroupsPlaceFollowsFromItsAxes) {
  const v1::Grid grid = GridOf(8, 4, 2);
  v1::Group tensor, data;
  tensor.add_axes(v1::TENSOR);
  data.add_axes(v1::DATA_SHARD);
  EXPECT_EQ(SpreadOf(grid, tensor, 8).nodes(), 1u);
  EXPECT_EQ(SpreadOf(grid, data, 8).nodes(), 4u);
  EXPECT_EQ(SpreadOf(grid, data, 16).in_node, 2u);
  EXPECT_EQ(SpreadOf(grid, data, 0).nodes(), 1u);
}

// A node of 8 ranks has 4 of each group of 2 tensor-parallel ranks.
TEST(LinkTimeTest, BlocksOfShardsAreInsideANodeAndTheirPlacesAcross) {
  const v1::Grid grid = GridOf(2, 16, 1);
  v1::Group near, far;
  near.add_axes(v1::DATA_SHARD);
  near.set_shard_block(4);
  far.add_axes(v1::DATA_SHARD);
  far.set_shard_stride(4);
  EXPECT_EQ(SpreadOf(grid, near, 8).members, 4u);
  EXPECT_EQ(SpreadOf(grid, near, 8).nodes(), 1u);
  EXPECT_EQ(SpreadOf(grid, far, 8).members, 4u);
  EXPECT_EQ(SpreadOf(grid, far, 8).nodes(), 4u);
  EXPECT_EQ(SpreadOf(grid, far, 16).nodes(), 2u);
}

TEST(LinkTimeTest, TransfersCrossNodesWhereTheirStagesDo) {
  v1::Program program;
  *program.mutable_grid() = GridOf(1, 2, 4);
  v1::Instruction send;
  send.mutable_transfer()->set_peer_stage(1);
  EXPECT_DOUBLE_EQ(*CommunicationSeconds(program, send, 100, TwoScopes(8)), 1.0);
  EXPECT_DOUBLE_EQ(*CommunicationSeconds(program, send, 100, TwoScopes(2)), 10.0);
  EXPECT_FALSE(CommunicationSeconds(program, v1::Instruction(), 1, TwoScopes(2)).ok());
}

}  // namespace
}  // namespace terrace
