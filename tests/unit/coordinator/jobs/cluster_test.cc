// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/planner/catalogue.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kGb = 1'000'000'000;

v1::Node Gpus(const std::string& driver_name, uint32_t devices, int64_t offered, int64_t whole) {
  v1::Node node;
  node.set_name("w0");
  node.set_device("cuda");
  node.set_device_name(driver_name);
  node.set_devices(devices);
  node.set_device_memory_bytes(offered);
  node.mutable_profile()->set_device_memory_bytes(whole);
  return node;
}

NodeView ViewOf(const v1::Node& node) {
  Cluster cluster({}, 0);
  EXPECT_TRUE(cluster.Register(node, 1, 0).ok());
  const std::vector<NodeView> known = cluster.Known(1);
  return known.empty() ? NodeView() : known[0];
}

TEST(ClusterTest, AGpuThatRanksShareIsLookedUpByItsWholeMemory) {
  const NodeView view = ViewOf(Gpus("NVIDIA A100-SXM4-80GB", 2, 42 * kGb, 85 * kGb));
  EXPECT_EQ(view.profile.name(), "A100-80GB");
  EXPECT_EQ(view.device_memory_bytes, 42 * kGb) << "a rank may have half of it";
  EXPECT_EQ(view.external_bytes, OverheadOf(Generation::kAmpere).total());
}

// Workers that do not say.
TEST(ClusterTest, WithoutItsWholeMemoryAGpuIsLookedUpByWhatIsOffered) {
  EXPECT_EQ(ViewOf(Gpus("NVIDIA A100-SXM4-80GB", 1, 85 * kGb, 0)).profile.name(), "A100-80GB");
}

TEST(ClusterTest, WhatStandsForAnUnknownGpuIsNamed) {
  const v1::Node node = Gpus("NVIDIA A10", 1, 24 * kGb, 24 * kGb);
  const NodeView view = ViewOf(node);
  EXPECT_EQ(view.profile.name(), "H100-80GB in place of NVIDIA A10, which is not in the catalogue");
  EXPECT_GT(view.profile.bf16_flops_per_second(), 1e14) << "rates of a GPU";
  EXPECT_EQ(view.external_bytes, OverheadOf(Generation::kHopper).total());
  EXPECT_THAT(StandInWarning(node),
              AllOf(HasSubstr("has no NVIDIA A10"), HasSubstr("rates of H100-80GB")));
}

TEST(ClusterTest, NothingStandsForKnownGpusAndCpus) {
  EXPECT_EQ(StandInWarning(Gpus("NVIDIA H100 80GB HBM3", 8, 85 * kGb, 85 * kGb)), "");
  v1::Node cpu;
  cpu.set_name("w1");
  cpu.set_devices(1);
  EXPECT_EQ(StandInWarning(cpu), "");
  EXPECT_EQ(ViewOf(cpu).external_bytes, 0);
}

TEST(ClusterTest, OnGpusThatJobsShareARankMayCountOthers) {
  const auto counts_others = [](const v1::Node& node, const std::string& other,
                                v1::RankState state) {
    Cluster cluster({}, 0);
    EXPECT_TRUE(cluster.Register(node, 1, 0).ok());
    v1::Heartbeat heartbeat;
    heartbeat.add_ranks()->set_job("a-1");
    heartbeat.add_ranks()->set_job(other);
    heartbeat.mutable_ranks(0)->set_state(v1::RANK_FAILED);
    heartbeat.mutable_ranks(1)->set_state(state);
    EXPECT_TRUE(cluster.Heartbeat("w0", 1, heartbeat, 1, 1).ok());
    return cluster.MayCountOthers("w0", "a-1");
  };
  const v1::Node parts = Gpus("NVIDIA H100 80GB HBM3", 2, 42 * kGb, 85 * kGb);
  EXPECT_TRUE(counts_others(parts, "b-2", v1::RANK_RUNNING));
  EXPECT_FALSE(counts_others(parts, "b-2", v1::RANK_SUCCEEDED));
  EXPECT_FALSE(counts_others(parts, "a-1", v1::RANK_RUNNING)) << "those of one job tell each other";
  const v1::Node whole = Gpus("NVIDIA H100 80GB HBM3", 2, 85 * kGb, 85 * kGb);
  EXPECT_FALSE(counts_others(whole, "b-2", v1::RANK_RUNNING));
  EXPECT_FALSE(Cluster({}, 0).MayCountOthers("", "a-1"));
  // How many GPUs there are is guessed from what is offered of them.
  const v1::Node less_of_whole = Gpus("NVIDIA H100 80GB HBM3", 2, 42 * kGb, 85 * kGb);
  EXPECT_TRUE(counts_others(less_of_whole, "b-2", v1::RANK_RUNNING)) << "--device-memory 40GiB";
  const v1::Node too_much_of_one = Gpus("NVIDIA H100 80GB HBM3", 2, 75 * kGb, 85 * kGb);
  EXPECT_FALSE(counts_others(too_much_of_one, "b-2", v1::RANK_RUNNING)) << "70GiB of one GPU";
}

TEST(ClusterTest, MeasuredRatesStay) {
  v1::Node node = Gpus("NVIDIA A10", 1, 24 * kGb, 24 * kGb);
  node.mutable_profile()->set_measured(true);
  node.mutable_profile()->set_name("measured here");
  EXPECT_EQ(ViewOf(node).profile.name(), "measured here");
}

}  // namespace
}  // namespace terrace
