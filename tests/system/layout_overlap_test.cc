// Over slow links the communication of ZeRO hides behind computation where there is enough of it;
// the trace shows it.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/system/layout_data.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kRanks = 2;
constexpr int64_t kLength = 128;
// The link needs this part of the time that computation takes: enough to hide it behind.
constexpr double kCommunication = 0.35;

// Layers are nearly all of it, so that the first and the last ones, which nothing hides, count
// little.
const JobData& Data() {
  static const auto* data = new JobData(RandomJob(TinyModel("llama", {.vocabulary = 256,
                                                                      .hidden = 256,
                                                                      .layers = 10,
                                                                      .intermediate = 512,
                                                                      .sequence = kLength}),
                                                  /*rows=*/8, kLength));
  return *data;
}

v1::Layout Zero(uint32_t stage, uint32_t micro_batch) {
  v1::Layout layout = MatrixLayout();
  layout.set_data_parallel(kRanks);
  layout.set_zero_stage(stage);
  layout.set_micro_batch(micro_batch);
  layout.set_micro_batches(2);
  return layout;
}

// Seconds, of one rank and step.
struct Shown {
  double communication = 0;  // of all slices
  double exposed = 0;        // of them, when nothing was computed
  double Ratio() const { return exposed / communication; }
};

using Interval = std::pair<double, double>;

// How much of the interval none of the others covers; those are in order and apart.
double Uncovered(const Interval& interval, const std::vector<Interval>& others) {
  double left = interval.second - interval.first;
  for (const Interval& other : others) {
    left -= std::max(
        0.0, std::min(interval.second, other.second) - std::max(interval.first, other.first));
  }
  return left;
}

// By step, from the trace of one rank and nothing else.
std::map<int64_t, Shown> ReadTrace(const fs::path& path) {
  std::ifstream file(path);
  const auto trace = nlohmann::json::parse(file);
  std::map<int64_t, std::string> streams;
  std::map<int64_t, std::vector<Interval>> computed;
  std::map<int64_t, std::vector<Interval>> communicated;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "thread_name") {
      streams[event["tid"]] = event["args"]["name"];
    }
    if (event["ph"] != "X") continue;
    const double begin = event["ts"].get<double>() * 1e-6;
    const Interval interval = {begin, begin + event["dur"].get<double>() * 1e-6};
    const std::string& stream = streams.at(event["tid"]);
    if (stream == "inputs") continue;
    (stream == "compute" ? computed : communicated)[event["args"]["step"]].push_back(interval);
  }
  std::map<int64_t, Shown> shown;
  for (const auto& [step, intervals] : communicated) {
    double end = 0;  // two streams may communicate at a time: what both expose counts once
    std::vector<Interval> sorted = intervals;
    std::sort(sorted.begin(), sorted.end());
    for (const Interval& interval : sorted) {
      shown[step].communication += interval.second - interval.first;
      const Interval rest = {std::max(interval.first, end), std::max(interval.second, end)};
      shown[step].exposed += Uncovered(rest, computed[step]);
      end = rest.second;
    }
  }
  return shown;
}

// Of the step and rank with the least: where ranks share cores, one waits for the other's
// computation, and both for whoever else uses the machine.
double LeastExposed(const v1::Layout& layout, double bytes_per_second) {
  const fs::path folder = fs::path(testing::TempDir()) / absl::StrCat("overlap-", ::getpid());
  fs::create_directories(folder);
  constexpr int64_t kSteps = 4;
  const JobResult slow =
      TrainLayout(Data(), layout, kSteps,
                  {.link = {.bytes_per_second = bytes_per_second}, .trace_folder = folder});
  double least = 1;
  for (uint32_t rank = 0; rank < kRanks && !slow.times.empty(); ++rank) {
    const std::map<int64_t, Shown> trace = ReadTrace(folder / absl::StrCat(rank, ".json"));
    EXPECT_EQ(trace.size(), static_cast<size_t>(kSteps - 1));
    for (const auto& [step, shown] : trace) {
      least = std::min(least, shown.Ratio());
      // What ranks report of themselves is what the trace shows.
      const SequenceTimes& times = slow.times[rank][step];
      EXPECT_NEAR(times.collective, shown.communication, 0.01 * times.total);
      EXPECT_NEAR(times.collective_exposed, shown.exposed, 0.05 * times.total);
    }
  }
  fs::remove_all(folder);
  return least;
}

class OverlapTest : public testing::TestWithParam<uint32_t> {};

TEST_P(OverlapTest, CommunicationHidesBehindEnoughComputation) {
  constexpr uint32_t kManyRows = 16;
  const uint32_t stage = GetParam();
  const JobResult fast = TrainLayout(Data(), Zero(stage, kManyRows), 2);
  ASSERT_EQ(fast.times.size(), kRanks);
  double compute = 1e9;
  for (const auto& rank : fast.times) {
    for (const SequenceTimes& step : rank) compute = std::min(compute, step.compute);
  }
  const double rate =
      static_cast<double>(fast.sent_per_step[0].at("shard")) / (kCommunication * compute);
  const double hidden = LeastExposed(Zero(stage, kManyRows), rate);
  EXPECT_LT(hidden, 0.2);
  // The same bytes over the same link with a sixteenth of the computation: most of it shows.
  const double shown = LeastExposed(Zero(stage, 1), rate);
  EXPECT_GT(shown, 0.5);
  std::printf("zero %u: %.0f ms of computation, %.0f MB/s: %.1f %% exposed; with less: %.1f %%\n",
              stage, compute * 1e3, rate * 1e-6, 100 * hidden, 100 * shown);
}

INSTANTIATE_TEST_SUITE_P(Zero, OverlapTest, testing::Values(2, 3));

}  // namespace
}  // namespace terrace
