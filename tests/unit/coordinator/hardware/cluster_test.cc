// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

std::string Refusal(const absl::Status& status) {
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(ClusterTest, ANameIsDeviceDevicesAndNodes) {
  const auto cluster = ParseCluster("h100x4:128");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->nodes, 128u);
  EXPECT_EQ(cluster->devices_per_node, 4u);
  EXPECT_EQ(cluster->profile.name(), "H100-80GB");
  EXPECT_EQ(cluster->profile.ranks_per_node(), 4u);
}

TEST(ClusterTest, WhatIsLeftOutIsTheUsualNode) {
  EXPECT_EQ(ParseCluster("h100")->devices_per_node, 8u);
  EXPECT_EQ(ParseCluster("h100:3")->nodes, 3u);
  EXPECT_EQ(ParseCluster("mi300x")->profile.name(), "MI300X-192GB");
  EXPECT_EQ(ParseCluster("mi300xx8:2")->profile.name(), "MI300X-192GB");
}

TEST(ClusterTest, ImpossibleNumbersAreRefused) {
  EXPECT_THAT(Refusal(ParseCluster("h100x0:4").status()), HasSubstr("devices of a node: got '0'"));
  EXPECT_THAT(Refusal(ParseCluster("h100x-1:4").status()),
              HasSubstr("devices of a node: got '-1'"));
  EXPECT_THAT(Refusal(ParseCluster("h100x65:4").status()), HasSubstr("from 1 to 64"));
  EXPECT_THAT(Refusal(ParseCluster("h100x8:0").status()), HasSubstr("nodes: got '0'"));
  EXPECT_THAT(Refusal(ParseCluster("h100x8:").status()), HasSubstr("nodes: got ''"));
  EXPECT_THAT(Refusal(ParseCluster("h100x8:99999999999").status()), HasSubstr("from 1 to 16384"));
}

TEST(ClusterTest, NamesThatAreNoneAreRefused) {
  for (const char* name : {"", " ", ":", "x", "x8", "x8:2", ":2", "nosuch", "8", "h100x8:2:3",
                           "h100x 8", "h100x8:2 ", "h100 x8", "h100xx8", "\n"}) {
    const auto cluster = ParseCluster(name);
    EXPECT_FALSE(cluster.ok()) << "'" << name << "'";
    EXPECT_FALSE(cluster.status().message().empty());
  }
  EXPECT_THAT(Refusal(ParseCluster("nosuch").status()),
              HasSubstr("device 'nosuch' is not in the catalogue, which has "));
  EXPECT_THAT(Refusal(ParseCluster("nosuch").status()), HasSubstr("H100-80GB"));
  EXPECT_FALSE(ParseCluster(std::string(100000, 'h')).ok());
}

TEST(ClusterTest, AnUnknownDeviceNamesTheNearest) {
  EXPECT_THAT(Refusal(ParseCluster("h10x8:2").status()), HasSubstr("did you mean 'h100'"));
  EXPECT_EQ(ParseCluster("h10x8:2").status().code(), absl::StatusCode::kNotFound);
}

TEST(ClusterTest, OpenResourcesBecomeTheClusters) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_nodes_min(1);
  spec.mutable_resources()->set_nodes_max(1);
  spec.mutable_resources()->set_devices_per_node(1);
  const Cluster cluster = *ParseCluster("h100x8:2048");
  ASSERT_TRUE(ApplyCluster(cluster, &spec).ok());
  const Budget budget = WhatIfBudget(spec, cluster);
  EXPECT_EQ(budget.ranks, 16384u);
  EXPECT_EQ(budget.nodes, 2048u);
  EXPECT_EQ(budget.device, "cuda") << "whose workspaces are others than the CPU's";
  EXPECT_EQ(budget.device_memory_bytes, cluster.device_memory_bytes);
  EXPECT_GT(budget.external_bytes, kGiB);
  EXPECT_GT(spec.resources().host_memory(), 100 * kGiB);
}

TEST(ClusterTest, AJobMayUseAPart) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_nodes_min(2);
  spec.mutable_resources()->set_nodes_max(4);
  spec.mutable_resources()->set_devices_per_node(4);
  spec.mutable_resources()->set_device_memory(40 * kGiB);
  const Cluster cluster = *ParseCluster("h100x8:8");
  ASSERT_TRUE(ApplyCluster(cluster, &spec).ok());
  EXPECT_EQ(spec.resources().nodes_max(), 4u);
  EXPECT_EQ(spec.resources().devices_per_node(), 4u);
  EXPECT_EQ(WhatIfBudget(spec, cluster).device_memory_bytes, 40 * kGiB);
}

TEST(ClusterTest, OneNodeThatIsWrittenIsOneNode) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_nodes_min(1);
  spec.mutable_resources()->set_nodes_max(1);
  spec.mutable_resources()->set_devices_per_node(1);
  const Cluster cluster = *ParseCluster("h100x8:128");
  v1::JobSpec one_node = spec, one_device = spec;
  ASSERT_TRUE(ApplyCluster(cluster, &one_node, {.nodes = true}).ok());
  EXPECT_EQ(WhatIfBudget(one_node, cluster).ranks, 8u);
  ASSERT_TRUE(ApplyCluster(cluster, &one_device, {.devices_per_node = true}).ok());
  EXPECT_EQ(WhatIfBudget(one_device, cluster).ranks, 128u);
}

TEST(ClusterTest, ContradictionsAreRefusedByKey) {
  const Cluster cluster = *ParseCluster("h100x8:2");
  const auto refusal = [&](const std::function<void(v1::ResourceSpec*)>& change) {
    v1::JobSpec spec;
    change(spec.mutable_resources());
    return Refusal(ApplyCluster(cluster, &spec));
  };
  EXPECT_THAT(refusal([](auto* r) { r->set_nodes_min(3); }),
              HasSubstr("resources.nodes: got 3, but the cluster H100-80GBx8:2 has 2"));
  EXPECT_THAT(refusal([](auto* r) { r->set_devices_per_node(16); }),
              HasSubstr("resources.devices_per_node: got 16"));
  EXPECT_THAT(refusal([](auto* r) { r->set_device_memory(96 * kGiB); }),
              HasSubstr("resources.device_memory: got"));
  EXPECT_THAT(refusal([](auto* r) { r->set_device("cpu"); }),
              HasSubstr("resources.device: got cpu"));
  EXPECT_THAT(refusal([](auto* r) { r->set_host_memory(1024 * kGiB); }),
              HasSubstr("resources.host_memory"));
}

}  // namespace
}  // namespace terrace
