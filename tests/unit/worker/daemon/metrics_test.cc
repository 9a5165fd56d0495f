// What a worker's /metrics says of its ranks and its node.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/http/metrics_server.h"
#include "base/utf8.h"
#include "tests/support/http_client.h"
#include "tests/support/metric_names.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

Supervisor::Metrics RankOf(uint32_t number) {
  Supervisor::Metrics rank{.job = "a-1", .rank = number};
  rank.metrics.set_steps(3);
  rank.metrics.set_energy_joules(12.5);
  rank.memory.set_external_allowed_bytes(100);
  for (v1::Tier tier : {v1::DEVICE, v1::HOST, v1::NVME}) {
    v1::TierMemory* memory = rank.memory.add_tiers();
    memory->set_tier(tier);
    memory->set_capacity_bytes(1000);
    for (int c = 1; c < v1::BufferClass_ARRAYSIZE; ++c) {
      v1::LiveClass* live = memory->add_live();
      live->set_class_(static_cast<v1::BufferClass>(c));
      live->set_bytes(c);
    }
  }
  for (bool write : {false, true}) {
    v1::OffloadTraffic* traffic = rank.memory.add_traffic();
    traffic->set_tier(v1::NVME);
    traffic->set_write(write);
    traffic->set_bytes(7);
  }
  rank.hot_layers = {{v1::DEVICE, "layer 3", 4096}};
  return rank;
}

WorkerSnapshot SnapshotOf(uint32_t ranks) {
  WorkerSnapshot snapshot{.version = "1.2.3", .devices = ranks, .connected = true};
  for (uint32_t rank = 0; rank < ranks; ++rank) snapshot.ranks.push_back(RankOf(rank));
  snapshot.use = {.host_available_bytes = 5, .lock_limit_bytes = 6, .joules = {{"package-0", 2.5}}};
  snapshot.confinement = {.user = "terrace", .landlock = 4, .seccomp = true};
  snapshot.nvme_available_bytes = 900;
  return snapshot;
}

TEST(WorkerMetricsTest, TheTableFollowsTheConventionsOfPrometheus) {
  for (const Metric& metric : WorkerMetricTable()) EXPECT_EQ(WhyBadName(metric), "");
}

TEST(WorkerMetricsTest, EverySeriesIsInTheTable) {
  EXPECT_THAT(FamiliesNotIn(WorkerMetricsText(SnapshotOf(2)), WorkerMetricTable()),
              testing::IsEmpty());
}

TEST(WorkerMetricsTest, SaysWhatIsLeftAndWhatEnergyIsTaken) {
  const std::string text = WorkerMetricsText(SnapshotOf(1));
  EXPECT_THAT(text, HasSubstr("terrace_energy_joules_total{job=\"a-1\",rank=\"0\"} 12.5\n"));
  EXPECT_THAT(text, HasSubstr("terrace_node_energy_joules_total{domain=\"package-0\"} 2.5\n"));
  EXPECT_THAT(text, HasSubstr("terrace_memory_available_bytes{tier=\"nvme\"} 900\n"));
  EXPECT_THAT(text, HasSubstr("terrace_memory_lock_limit_bytes 6\n"));
  EXPECT_THAT(text,
              HasSubstr("terrace_build_info{program=\"terrace-worker\",version=\"1.2.3\"} 1\n"));
}

TEST(WorkerMetricsTest, SaysHowRanksAreConfined) {
  EXPECT_THAT(WorkerMetricsText(SnapshotOf(1)),
              HasSubstr("terrace_rank_confinement_info{user=\"terrace\",landlock=\"4\","
                        "seccomp=\"yes\",roots=\"no\"} 1\n"));
}

TEST(WorkerMetricsTest, ShowsTheLayersThatNeedMost) {
  EXPECT_THAT(WorkerMetricsText(SnapshotOf(1)),
              HasSubstr("terrace_memory_layer_peak_bytes{job=\"a-1\",rank=\"0\",tier=\"device\","
                        "layer=\"layer 3\"} 4096\n"));
}

TEST(WorkerMetricsTest, NoNameFromOutsideSpoilsTheScrape) {
  WorkerSnapshot snapshot = SnapshotOf(1);
  snapshot.ranks[0].job = "caf\xe9\"} 1\nforged_total 1";
  snapshot.ranks[0].hot_layers[0].layer = "layer \x1b[2J" + std::string(5000, 'x');
  snapshot.use.joules = {{"package\xff", 2.5}};
  const std::string text = WorkerMetricsText(snapshot);
  EXPECT_EQ(FindInvalidUtf8(text), text.size());
  EXPECT_THAT(text, HasSubstr(R"(domain="package\\xff")"));
  EXPECT_THAT(text, HasSubstr(R"(job="caf\\xe9\"} 1\\nforged_total 1")"));
  EXPECT_THAT(text, Not(HasSubstr("\nforged_total")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr(std::string(1000, 'x'))));
}

TEST(WorkerMetricsTest, WhatIsNotKnownHasNoSeries) {
  const std::string text = WorkerMetricsText({});
  for (const char* name : {"terrace_memory_available_bytes{", "terrace_memory_lock_limit_bytes ",
                           "terrace_node_energy_joules_total{"})
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("\n", name))));
}

// As Prometheus asks: over HTTP, with the layers that each rank's tiers may name.
TEST(WorkerMetricsTest, AScrapeOf64RanksTakesLessThan50Milliseconds) {
  WorkerSnapshot snapshot = SnapshotOf(64);
  for (Supervisor::Metrics& rank : snapshot.ranks) {
    rank.job = "llama3-70b-pretraining-1234";
    for (size_t i = 0; i < kHotLayersMax; ++i) {
      rank.hot_layers.push_back({v1::HOST, absl::StrCat("layer ", i), 1 << 20});
    }
  }
  const auto server =
      ServeMetrics({.address = "127.0.0.1:0"}, [&snapshot] { return WorkerMetricsText(snapshot); });
  ASSERT_TRUE(server.ok()) << server.status();
  std::chrono::duration<double, std::milli> best = std::chrono::hours(1);
  size_t bytes = 0;
  for (int scrape = 0; scrape < 5; ++scrape) {
    absl::SleepFor(kMetricsTextKept);  // or the same text would be served again
    const auto begin = std::chrono::steady_clock::now();
    const std::string answer = testing_http::Ask((*server)->port(), "GET /metrics");
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    EXPECT_THAT(answer, HasSubstr("rank=\"63\""));
    bytes = answer.size();
    best = std::min(best, took);
  }
  std::printf("a scrape of 64 ranks over HTTP: %.1f ms, %zu bytes\n", best.count(), bytes);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(best.count(), 50);
#endif
}

// ---- the node ---------------------------------------------------------------------------------

class NodeUseTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "node_use_test";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/intel-rapl:0");
    std::filesystem::create_directories(folder_ + "/intel-rapl:0:0");
    Write("intel-rapl:0/name", "package-0");
    Write("intel-rapl:0/max_energy_range_uj", "1000000000");
    Write("intel-rapl:0:0/name", "dram");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& file, const std::string& text) {
    std::ofstream(folder_ + "/" + file) << text << "\n";
  }

  std::string folder_;
};

TEST_F(NodeUseTest, JoulesAreThoseSinceTheFirstReadingAlsoOverATurnOfTheCounter) {
  NodeUseReader reader({.powercap = folder_});
  Write("intel-rapl:0/energy_uj", "999000000");
  EXPECT_EQ(reader.Read().joules["package-0"], 0);
  Write("intel-rapl:0/energy_uj", "999500000");
  EXPECT_DOUBLE_EQ(reader.Read().joules["package-0"], 0.5);
  Write("intel-rapl:0/energy_uj", "250000");
  EXPECT_DOUBLE_EQ(reader.Read().joules["package-0"], 1.25);
}

TEST_F(NodeUseTest, ADomainThatThisUserMayNotReadIsAbsent) {
  NodeUseReader reader({.powercap = folder_});
  Write("intel-rapl:0:0/energy_uj", "5");
  reader.Read();
  const NodeUse use = reader.Read();
  EXPECT_TRUE(use.joules.contains("package-0/dram"));
  EXPECT_FALSE(use.joules.contains("package-0"));
}

TEST_F(NodeUseTest, AMachineWithoutThemHasNoEnergyAndNoMemoryThatIsLeft) {
  NodeUseReader reader({.meminfo = folder_ + "/none", .powercap = folder_ + "/none"});
  EXPECT_TRUE(reader.Read().joules.empty());
  EXPECT_EQ(reader.Read().host_available_bytes, 0);
}

TEST_F(NodeUseTest, ReadsWhatIsAvailable) {
  Write("meminfo", "MemTotal:       2000 kB\nMemFree:         10 kB\nMemAvailable:   1000 kB");
  NodeUseReader reader({.meminfo = folder_ + "/meminfo", .powercap = folder_});
  EXPECT_EQ(reader.Read().host_available_bytes, 1000 << 10);
  EXPECT_GT(AvailableBytes(folder_), 0);
  EXPECT_EQ(AvailableBytes(folder_ + "/none"), 0);
}

}  // namespace
}  // namespace terrace
