// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/hardware/catalogue.h"

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
  EXPECT_EQ(view.profile->name(), "A100-80GB");
  EXPECT_EQ(view.device_memory_bytes, 42 * kGb) << "a rank may have half of it";
  EXPECT_EQ(view.external_bytes, OverheadOf(Generation::kAmpere).total());
}

// Workers that do not say.
TEST(ClusterTest, WithoutItsWholeMemoryAGpuIsLookedUpByWhatIsOffered) {
  EXPECT_EQ(ViewOf(Gpus("NVIDIA A100-SXM4-80GB", 1, 85 * kGb, 0)).profile->name(), "A100-80GB");
}

TEST(ClusterTest, WhatStandsForAnUnknownGpuIsNamed) {
  const v1::Node node = Gpus("NVIDIA A10", 1, 24 * kGb, 24 * kGb);
  const NodeView view = ViewOf(node);
  EXPECT_EQ(view.profile->name(),
            "H100-80GB in place of NVIDIA A10, which is not in the catalogue");
  EXPECT_GT(view.profile->bf16_flops_per_second(), 1e14) << "rates of a GPU";
  EXPECT_EQ(view.external_bytes, OverheadOf(Generation::kHopper).total());
  EXPECT_THAT(GpuWarning(node),
              AllOf(HasSubstr("has no NVIDIA A10"), HasSubstr("rates of H100-80GB")));
}

TEST(ClusterTest, NothingStandsForKnownGpusAndCpus) {
  EXPECT_EQ(GpuWarning(Gpus("NVIDIA H100 80GB HBM3", 8, 85 * kGb, 85 * kGb)), "");
  v1::Node cpu;
  cpu.set_name("w1");
  cpu.set_devices(1);
  EXPECT_EQ(GpuWarning(cpu), "");
  EXPECT_EQ(ViewOf(cpu).external_bytes, 0);
}

// Names and what drivers say end on terminals.
TEST(ClusterTest, TextOfAWorkerIsMadeHarmless) {
  Cluster cluster({}, 0);
  v1::Node node = Gpus("fast\x1b[31m\ncard", 1, 42 * kGb, 85 * kGb);
  for (const char* name : {"a\x1b[31mb", "a\nb", "a\xff", "a\u202eb", "../../x", "", "a b"}) {
    node.set_name(name);
    const absl::Status status = cluster.Register(node, 1, 0);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the worker's name: got \""));
  }
  node.set_name(std::string(10'000'000, 'n'));
  const absl::Status status = cluster.Register(node, 1, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_LT(status.message().size(), 1000u);
  EXPECT_TRUE(cluster.List(1).empty()) << "nothing of it is kept";
  node.set_name("node-1.example");
  node.mutable_profile()->add_kernels()->set_kernel("k\x07");
  node.mutable_profile()->set_doubt("busy\n\tline");
  ASSERT_TRUE(cluster.Register(node, 1, 0).ok());
  const v1::Node kept = cluster.List(1).at(0);
  EXPECT_EQ(kept.name(), node.name());
  EXPECT_EQ(kept.device_name(), "fast\\x1b[31m\\ncard");
  EXPECT_EQ(kept.profile().kernels(0).kernel(), "k\\x07");
  EXPECT_EQ(kept.profile().doubt().find('\n'), std::string::npos);
}

TEST(ClusterTest, NumbersThatNoWorkerHasAreRefused) {
  const auto refused = [](void (*change)(v1::Node&), const char* words) {
    Cluster cluster({}, 0);
    v1::Node node;
    node.set_name("w0");
    node.set_devices(1);
    ASSERT_TRUE(cluster.Register(node, 1, 0).ok());
    change(node);
    const absl::Status status = cluster.Register(node, 2, 0);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    EXPECT_TRUE(cluster.Heartbeat("w0", 1, {}, 0, 0).ok()) << "the one before stays";
  };
  refused([](v1::Node& node) { node.set_devices(0); }, "devices: got 0, must be from 1 to 1024");
  refused([](v1::Node& node) { node.set_devices(UINT32_MAX); }, "devices: got 4294967295");
  refused([](v1::Node& node) { node.set_gpus(UINT32_MAX); }, "gpus: got");
  refused([](v1::Node& node) { node.set_threads_per_device(1 << 30); }, "threads per device");
  refused([](v1::Node& node) { node.set_memory_bytes(-1); }, "memory: got -1");
  refused([](v1::Node& node) { node.set_device_memory_bytes(INT64_MAX); }, "device memory: got");
  refused([](v1::Node& node) { node.set_device("tpu"); }, "device: got \"tpu\"");
  refused([](v1::Node& node) { node.set_version(std::string(2000, 'v')); }, "bytes of a text");
  refused(
      [](v1::Node& node) {
        node.mutable_profile()->add_kernels()->set_kernel(std::string(5 << 20, 'k'));
      },
      "bytes of its registration");
}

TEST(ClusterTest, ReportsOfWhatCannotBeAreRefusedAndCountForNothing) {
  Cluster cluster({}, 0);
  v1::Node node;
  node.set_name("w0");
  node.set_devices(1);
  ASSERT_TRUE(cluster.Register(node, 1, 0).ok());
  const auto refused = [&](void (*change)(v1::RankReport&)) {
    v1::Heartbeat heartbeat;
    v1::RankReport& rank = *heartbeat.add_ranks();
    rank.set_job("a-1");
    rank.set_state(v1::RANK_RUNNING);
    change(rank);
    const absl::Status status = cluster.Heartbeat("w0", 1, heartbeat, 0, 0);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(cluster.Reports().empty());
  };
  refused([](v1::RankReport& rank) { rank.set_state(static_cast<v1::RankState>(99)); });
  refused([](v1::RankReport& rank) { rank.set_state(v1::RANK_STATE_UNSPECIFIED); });
  refused([](v1::RankReport& rank) { rank.set_epoch(-1); });
  refused([](v1::RankReport& rank) { rank.mutable_progress()->set_step(-5); });
  refused([](v1::RankReport& rank) { rank.set_job(std::string(1000, 'j')); });
}

TEST(ClusterTest, AnotherProcessOfANameIsRefusedWhileTheFirstIsHeard) {
  Cluster cluster({}, 0);
  v1::Node node;
  node.set_name("w0");
  node.set_address("10.0.0.1");
  node.set_devices(1);
  ASSERT_TRUE(cluster.Register(node, 1, 0, "first").ok());
  const absl::Status second = cluster.Register(node, 2, 1, "second");
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.message()),
              HasSubstr("a worker w0 is connected, from 10.0.0.1: names must differ"));
  EXPECT_TRUE(cluster.Heartbeat("w0", 1, {}, 2, 0).ok()) << "the first is not thrown out";
  EXPECT_TRUE(cluster.Register(node, 3, 3, "first").ok()) << "it dials again";
  cluster.Disconnect("w0", 3);
  EXPECT_TRUE(cluster.Register(node, 4, 4, "second").ok()) << "it has ended";
  EXPECT_TRUE(cluster.Register(node, 5, 5'000'000'000, "third").ok()) << "it is silent";
}

// Two jobs with a rank each on these devices of a worker with so many GPUs.
bool CountsOthers(uint32_t gpus, uint32_t own, uint32_t others, v1::RankState state,
                  const std::string& other = "b-2") {
  Cluster cluster({}, 0);
  v1::Node node = Gpus("NVIDIA H100 80GB HBM3", 4, 42 * kGb, 85 * kGb);
  node.set_gpus(gpus);
  EXPECT_TRUE(cluster.Register(node, 1, 0).ok());
  v1::Heartbeat heartbeat;
  heartbeat.add_ranks()->set_job("a-1");
  heartbeat.add_ranks()->set_job(other);
  heartbeat.mutable_ranks(0)->set_state(v1::RANK_FAILED);
  heartbeat.mutable_ranks(0)->set_device(own);
  heartbeat.mutable_ranks(1)->set_state(state);
  heartbeat.mutable_ranks(1)->set_device(others);
  EXPECT_TRUE(cluster.Heartbeat("w0", 1, heartbeat, 1, 1).ok());
  return cluster.MayCountOthers("w0", "a-1");
}

TEST(ClusterTest, OnAGpuThatJobsShareARankMayCountOthers) {
  EXPECT_TRUE(CountsOthers(/*gpus=*/1, 0, 1, v1::RANK_RUNNING));
  EXPECT_TRUE(CountsOthers(/*gpus=*/2, 1, 3, v1::RANK_RUNNING)) << "devices 1 and 3 are GPU 1";
  EXPECT_FALSE(CountsOthers(/*gpus=*/1, 0, 1, v1::RANK_SUCCEEDED));
  EXPECT_FALSE(CountsOthers(/*gpus=*/1, 0, 1, v1::RANK_RUNNING, "a-1"))
      << "those of one job tell each other";
  EXPECT_FALSE(Cluster({}, 0).MayCountOthers("", "a-1"));
}

// However little of them is offered.
TEST(ClusterTest, OnGpusOfTheirOwnRanksCountThemselves) {
  EXPECT_FALSE(CountsOthers(/*gpus=*/4, 0, 1, v1::RANK_RUNNING));
  EXPECT_FALSE(CountsOthers(/*gpus=*/2, 0, 3, v1::RANK_RUNNING));
}

TEST(ClusterTest, AWorkerThatDoesNotSayHowManyGpusItHasMayShareThem) {
  EXPECT_TRUE(CountsOthers(/*gpus=*/0, 0, 1, v1::RANK_RUNNING));
  EXPECT_FALSE(CountsOthers(/*gpus=*/0, 0, 1, v1::RANK_SUCCEEDED));
}

TEST(ClusterTest, RatesMeasuredOfTheGpuStayAndThoseOfAnotherAreNamed) {
  v1::Node node = Gpus("NVIDIA A10", 1, 24 * kGb, 24 * kGb);
  v1::HardwareProfile& measured = *node.mutable_profile();
  measured.set_measured(true);
  measured.set_device("cuda");
  measured.set_name("NVIDIA A10");
  measured.set_f32_flops_per_second(2e13);
  measured.set_bf16_flops_per_second(6e13);
  measured.set_memory_bytes_per_second(5e11);
  measured.set_to_device_bytes_per_second(2e10);
  measured.set_to_host_bytes_per_second(2e10);
  EXPECT_EQ(ViewOf(node).profile->name(), "NVIDIA A10");
  EXPECT_TRUE(ViewOf(node).profile->measured());
  EXPECT_THAT(GpuWarning(node), HasSubstr("layouts are chosen by the rates of H100-80GB"));
  measured.set_name("NVIDIA L4");
  EXPECT_FALSE(ViewOf(node).profile->measured());
  EXPECT_THAT(GpuWarning(node),
              AllOf(HasSubstr("the profile of NVIDIA A10 is not used, as it is of NVIDIA L4"),
                    HasSubstr("--refresh")));
}

// Workers that have come and reported, at 10.0.0.<number>.
class PeerChecksTest : public testing::Test {
 protected:
  void Come(const std::string& name, uint64_t session = 1) {
    v1::Node node;
    node.set_name(name);
    node.set_devices(1);
    node.set_data_address(AddressOf(name));
    ASSERT_TRUE(cluster_.Register(node, session, now_).ok());
    ASSERT_TRUE(cluster_.Heartbeat(name, session, {}, now_, 0).ok());
  }
  static std::string AddressOf(const std::string& name) { return "10.0.0." + name + ":1"; }
  // "from>to" of each.
  std::set<std::string> Checks() {
    std::set<std::string> checks;
    for (const Cluster::PeerCheck& one : cluster_.PeerChecks(now_)) {
      EXPECT_EQ(one.check.data_address(), AddressOf(one.check.worker()));
      checks.insert(one.from + ">" + one.check.worker());
    }
    return checks;
  }
  void Tell(const std::string& from, const std::string& to, const std::string& error) {
    v1::PeerChecked checked;
    checked.set_worker(to);
    checked.set_data_address(AddressOf(to));
    checked.set_error(error);
    cluster_.PeerChecked(from, checked, now_);
  }
  std::string ProblemOf(const std::string& name) {
    for (const v1::Node& node : cluster_.List(now_)) {
      if (node.name() == name) return node.problem();
    }
    return "no such node";
  }

  Cluster cluster_{{}, 0};
  int64_t now_ = 1;
};

TEST_F(PeerChecksTest, WhoComesDialsTheOthersAndIsDialledOnce) {
  Come("1");
  EXPECT_THAT(Checks(), testing::IsEmpty());
  Come("2");
  EXPECT_THAT(Checks(), testing::UnorderedElementsAre("1>2", "2>1"));
  EXPECT_THAT(Checks(), testing::IsEmpty());
  Come("3");
  EXPECT_THAT(Checks(), testing::UnorderedElementsAre("1>3", "3>1", "2>3", "3>2"));
}

TEST_F(PeerChecksTest, WhoCannotBeReachedHasAProblemUntilSomebodyReachesIt) {
  Come("1");
  Come("2");
  Checks();
  Tell("1", "2", "connection refused");
  Tell("2", "1", "");
  EXPECT_EQ(ProblemOf("1"), "");
  EXPECT_THAT(ProblemOf("2"), AllOf(HasSubstr("worker 1 cannot reach it"),
                                    HasSubstr("connection refused"), HasSubstr("--data-address")));
  EXPECT_THAT(Checks(), testing::IsEmpty());
  now_ += 10'000'000'000;
  Come("1", 2);  // or both would be silent by now
  ASSERT_TRUE(cluster_.Heartbeat("2", 1, {}, now_, 0).ok());
  EXPECT_THAT(Checks(), testing::Contains("1>2")) << "again, from time to time";
  Tell("1", "2", "");
  EXPECT_EQ(ProblemOf("2"), "");
}

TEST_F(PeerChecksTest, WhoeverComesAgainStartsWithoutAProblem) {
  Come("1");
  Come("2");
  Checks();
  Tell("1", "2", "connection refused");
  Come("2", 2);
  EXPECT_EQ(ProblemOf("2"), "");
  EXPECT_THAT(Checks(), testing::UnorderedElementsAre("1>2", "2>1"));
}

// Of thousands of workers the last comes back long after the first.
TEST(ClusterTest, WhoHasNotComeBackIsAwayWhileOthersComeBack) {
  const Cluster::Timing timing;
  Cluster cluster(timing, 0);
  v1::Node node;
  node.set_devices(1);
  const auto come = [&](int64_t now_ns) {
    node.set_name(absl::StrCat("w", now_ns));
    ASSERT_TRUE(cluster.Register(node, 1, now_ns).ok());
  };
  const int64_t apart_ns = timing.grace_apart_ns;
  int64_t now_ns = timing.grace_ns;
  for (; now_ns + apart_ns < timing.grace_most_ns; now_ns += apart_ns) {
    come(now_ns);
    EXPECT_EQ(cluster.StateOf("last", now_ns + apart_ns), NodeState::kAway);
    EXPECT_EQ(cluster.StateOf("last", now_ns + apart_ns + 1), NodeState::kLost);
  }
  come(now_ns);
  EXPECT_EQ(cluster.StateOf("last", timing.grace_most_ns), NodeState::kAway);
  EXPECT_EQ(cluster.StateOf("last", timing.grace_most_ns + 1), NodeState::kLost);
}

TEST(ClusterTest, WhoComesLaterMakesNoClusterYoungAgain) {
  const Cluster::Timing timing;
  Cluster cluster(timing, 0);
  v1::Node node;
  node.set_devices(1);
  node.set_name("w0");
  ASSERT_TRUE(cluster.Register(node, 1, timing.grace_ns - timing.grace_apart_ns).ok());
  ASSERT_TRUE(cluster.Register(node, 2, timing.grace_ns).ok()) << "again, which counts for nothing";
  EXPECT_EQ(cluster.StateOf("last", timing.grace_ns + 1), NodeState::kLost);
  node.set_name("w1");
  ASSERT_TRUE(cluster.Register(node, 3, timing.grace_ns + 1).ok());
  EXPECT_EQ(cluster.StateOf("last", timing.grace_ns + 2), NodeState::kLost);
}

// Three workers, of which the last is one of many.
class ManyWorkersTest : public testing::Test {
 protected:
  static constexpr Cluster::Timing kTiming = {.many = 2};

  void Come(int64_t now_ns) {
    v1::Node node;
    node.set_devices(1);
    for (const char* name : {"w0", "w1", "w2"}) {
      node.set_name(name);
      ASSERT_TRUE(cluster_.Register(node, 1, now_ns).ok());
      ASSERT_TRUE(cluster_.Heartbeat(name, 1, {}, now_ns, 0).ok());
    }
  }

  Cluster cluster_{kTiming, 0};
};

// Heartbeats of thousands would take most of a core.
TEST_F(ManyWorkersTest, WhoComesToManyIsHeardLessOften) {
  const int64_t now_ns = kTiming.grace_ns + 1;  // it is not young any more
  Come(now_ns);
  EXPECT_EQ(cluster_.BeatOf("w1").every_ns, kTiming.beat.every_ns);
  EXPECT_EQ(cluster_.BeatOf("w2").every_ns, kTiming.beat_of_many.every_ns);
  EXPECT_THAT(cluster_.Expire(now_ns + kTiming.beat.lost_after_ns + 1),
              testing::ElementsAre("w0", "w1"));
  const int64_t lost_after_ns = kTiming.beat_of_many.lost_after_ns;
  EXPECT_EQ(cluster_.StateOf("w2", now_ns + lost_after_ns), NodeState::kReady);
  EXPECT_THAT(cluster_.Expire(now_ns + lost_after_ns + 1), testing::ElementsAre("w2"));
  Come(now_ns + lost_after_ns + 2);
  EXPECT_EQ(cluster_.BeatOf("w0").every_ns, kTiming.beat_of_many.every_ns) << "there are many now";
}

TEST_F(ManyWorkersTest, NoneIsLostWhileTheyComeBackAtOnce) {
  Come(1);
  EXPECT_THAT(cluster_.Expire(kTiming.grace_ns), testing::IsEmpty());
  EXPECT_THAT(cluster_.Expire(kTiming.grace_ns + 2), testing::ElementsAre("w0", "w1", "w2"));
}

}  // namespace
}  // namespace terrace
