// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "coordinator/planner/cluster_file.h"

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
  const Budget budget = BudgetOnPaper(spec, cluster);
  EXPECT_EQ(budget.ranks, 16384u);
  EXPECT_EQ(budget.nodes, 2048u);
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
  EXPECT_EQ(BudgetOnPaper(spec, cluster).device_memory_bytes, 40 * kGiB);
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

TEST(ClusterFileTest, WhatIsWrittenReplacesTheDevices) {
  const auto cluster = ParseClusterFile(
      "name: lab\nnodes: 4\ndevices_per_node: 2\n"
      "device: {like: h100, name: H800, memory: 64GiB, bf16_tflops: 800, overhead: 1GiB}\n"
      "links: {node: 160GB, network: ib-hdr200, network_latency_us: 20, host: pcie4}\n"
      "host: {memory: 512GiB, memory_bandwidth: 200GB}\n"
      "nvme: {read_bandwidth: 12GB, write_bandwidth: 6GB}\n");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const v1::HardwareProfile& profile = cluster->profile;
  EXPECT_EQ(cluster->name, "lab");
  EXPECT_EQ(profile.name(), "H800");
  EXPECT_EQ(cluster->device_memory_bytes, 64 * kGiB);
  EXPECT_EQ(cluster->overhead_bytes, kGiB);
  EXPECT_DOUBLE_EQ(profile.bf16_flops_per_second(), 800e12);
  EXPECT_DOUBLE_EQ(profile.links(0).bytes_per_second(), 160e9);
  EXPECT_LT(profile.links(1).bytes_per_second(), 25e9);
  EXPECT_DOUBLE_EQ(profile.links(1).latency_seconds(), 20e-6);
  EXPECT_DOUBLE_EQ(profile.to_host_bytes_per_second(), 28.8e9);
  EXPECT_DOUBLE_EQ(profile.nvme_write_bytes_per_second(), 3e9);
  EXPECT_DOUBLE_EQ(profile.host_memory_bytes_per_second(), 100e9);
}

TEST(ClusterFileTest, AllProblemsAreReportedWithTheirPlaces) {
  const std::string message = Refusal(ParseClusterFile("nodes: 0\n"
                                                       "device: {like: h100, memry: 80GiB}\n"
                                                       "links: {network: ib-ndr40}\n"
                                                       "nodes: 2\n")
                                          .status());
  EXPECT_THAT(message, HasSubstr("line 1, column 1: nodes: got \"0\", must be a whole number"));
  EXPECT_THAT(message, HasSubstr("line 2, column 22: device.memry: got an unknown key"));
  EXPECT_THAT(message, HasSubstr("try device.memory"));
  EXPECT_THAT(message, HasSubstr("did you mean 'ib-ndr400'"));
}

TEST(ClusterFileTest, WhatIsNoClusterIsRefused) {
  EXPECT_THAT(Refusal(ParseClusterFile("[1, 2]").status()), HasSubstr("must be a mapping"));
  EXPECT_THAT(Refusal(ParseClusterFile("a: [").status()), HasSubstr("is not YAML"));
  EXPECT_THAT(Refusal(ParseClusterFile("nodes: 2\n").status()), HasSubstr("device.like"));
  EXPECT_THAT(Refusal(ParseClusterFile("device: h10\n").status()), HasSubstr("did you mean"));
  EXPECT_THAT(Refusal(ParseClusterFile("device: {like: h100, overhead: 900GiB}\n").status()),
              HasSubstr("device.overhead"));
  EXPECT_THAT(Refusal(ParseClusterFile(std::string(70000, '#')).status()), HasSubstr("at most"));
}

}  // namespace
}  // namespace terrace
