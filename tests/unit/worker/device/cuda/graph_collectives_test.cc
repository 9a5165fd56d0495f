// Graphs that hold collectives, on the device that the host plays, with groups whose other member
// has the same data.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "tests/unit/worker/device/cuda/collective_rank.h"
#include "tests/unit/worker/device/cuda/graph_orders.h"
#include "tests/unit/worker/vm/member_of_two.h"
#include "worker/rank/memory_report.h"

namespace terrace {
namespace {

using simt::DeviceOptions;
using testing::HasSubstr;

void ExpectRight(const DeviceOptions& options) {
  simt::ResetDevice(options);
  CollectiveRank rank;
  ASSERT_TRUE(rank.Open().ok());
  const std::vector<std::string> order = {"data", "tensor", "data"};
  EXPECT_EQ(std::exchange(rank.shared.calls, {}), order) << "captured in the order of the list";
  for (int run = 0; run < 4; ++run) EXPECT_TRUE(rank.RunIsRight()) << run;
  EXPECT_EQ(rank.vm().graph_runs(), 3) << "all but the first";
  EXPECT_EQ(rank.shared.calls, order) << "and called once more";
  EXPECT_EQ(rank.shared.runs_begun, 2 * 3);
  EXPECT_EQ(rank.bytes_sent(0), 4 * 2 * 16) << "runs, sums, bytes";
  EXPECT_EQ(rank.bytes_sent(1), 4 * 16);
}

TEST(GraphCollectivesTest, TheyArePartOfTheGraphInWhateverOrderTheDeviceWorks) {
  InAllOrders(ExpectRight);
}

TEST(GraphCollectivesTest, EdgesToAndFromCollectivesAreNeeded) {
  simt::ResetDevice({});
  int64_t edges = 0;
  {
    CollectiveRank rank;
    ASSERT_TRUE(rank.Open().ok());
    edges = simt::CountsOfDevice().waits;
  }
  ASSERT_EQ(edges, 2 + 6 + 2) << "both streams begin, each sum waits and is waited for, both end";
  int noticed = 0;
  for (int64_t edge = 1; edge <= edges; ++edge)
    noticed += NoticesWithout<CollectiveRank>(edge) ? 1 : 0;
  // What begins waits for computation anyway, and the last of each is waited for anyway.
  EXPECT_EQ(noticed, 6);
}

// Whatever a group allows a call: a step of many takes longer.
TEST(GraphCollectivesTest, GroupsAreToldHowLongTheStepTookOneByOne) {
  simt::ResetDevice({});
  CollectiveRank rank;
  rank.shared.takes = std::chrono::milliseconds(30);
  ASSERT_TRUE(rank.Open().ok());
  ASSERT_TRUE(rank.RunIsRight());
  EXPECT_EQ(rank.shared.runs_begun, 0);
  ASSERT_TRUE(rank.RunIsRight());
  EXPECT_EQ(rank.shared.runs_begun, 2);
  EXPECT_GE(rank.shared.one_by_one_ns, 3 * 30'000'000) << "three sums";
}

TEST(GraphCollectivesTest, ALostMemberEndsTheRunAndTheGroups) {
  simt::ResetDevice({});
  CollectiveRank rank;
  ASSERT_TRUE(rank.Open().ok());
  ASSERT_TRUE(rank.RunIsRight());
  rank.shared.lost = absl::UnavailableError("group data.0: rank 1: a member is lost");
  const absl::Status status = rank.Run();
  EXPECT_EQ(rank.vm().graph_runs(), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("train, launched as one graph: group data.0: rank 1: a member is lost"));
  EXPECT_GE(rank.shared.aborted, 2) << "every group of the rank";
}

TEST(GraphCollectivesTest, WhatNcclDoesNotCaptureIsLaunchedOneByOne) {
  simt::ResetDevice({});
  CollectiveRank rank;
  rank.shared.capture_fails = true;
  ASSERT_TRUE(rank.Open().ok());
  EXPECT_EQ(rank.vm().LacksCollectiveGraphs(), std::vector<bool>{true});
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(rank.RunIsRight()) << run;
  EXPECT_EQ(rank.vm().graph_runs(), 0);
}

// Going on one by one would fail at the first of its calls.
TEST(GraphCollectivesTest, AGroupThatBreaksWhileItIsCapturedEndsTheRankWithTheWayOut) {
  simt::ResetDevice({});
  CollectiveRank rank;
  rank.shared.breaks_in_capture = true;
  const absl::Status status = rank.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("train broke a group when it was made a graph: group data.0: rank 0: "
                        "all-reduce failed: NCCL"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("TERRACE_CUDA_GRAPHS=0"));
}

// A job's other rank says that it has no room for any graph, or which it lacks.
class OtherSays final : public MemberOfTwo {
 public:
  explicit OtherSays(std::vector<std::vector<float>> says) : says_(std::move(says)) {}
  absl::Status AllReduce(void* data, int64_t n, ReduceType) override {
    auto* const values = static_cast<float*>(data);
    heard.emplace_back(values, values + n);
    EXPECT_EQ(says_.at(heard.size() - 1).size(), n);
    for (int64_t i = 0; i < n; ++i) values[i] += says_[heard.size() - 1][i];
    return absl::OkStatus();
  }

  std::vector<std::vector<float>> heard;  // from this rank

 private:
  const std::vector<std::vector<float>> says_;
};

// How many of three executions of each sequence are graphs after this rank, with `shared`, has
// heard that the other has no room, or lacks the graphs of train or eval.
struct GraphRuns {
  int64_t train = 0, eval = 0;
  bool operator==(const GraphRuns&) const = default;
};
GraphRuns RunsAfter(std::vector<std::vector<float>> says) {
  simt::ResetDevice({});
  CollectiveRank rank(/*with_eval=*/true);
  EXPECT_TRUE(rank.Open().ok());
  OtherSays other(std::move(says));
  Agreement agreement(&other);
  EXPECT_TRUE(rank.External(&agreement).ok());
  EXPECT_EQ(other.heard, (std::vector<std::vector<float>>{{0}, {0, 0}})) << "it lacks nothing";
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(rank.RunIsRight("train")) << run;
  const int64_t train = rank.vm().graph_runs();
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(rank.RunIsRight("eval")) << run;
  return {train, rank.vm().graph_runs() - train};
}

TEST(GraphCollectivesTest, AllRanksDropWhatOneOfThemCannotHave) {
  EXPECT_EQ(RunsAfter({{0}, {0, 0}}), (GraphRuns{2, 2})) << "all but the first";
  EXPECT_EQ(RunsAfter({{1}, {0, 0}}), (GraphRuns{0, 0}));
  EXPECT_EQ(RunsAfter({{0}, {1, 0}}), (GraphRuns{0, 2}));
  EXPECT_EQ(RunsAfter({{0}, {0, 1}}), (GraphRuns{2, 0}));
}

// The program is that of ranks whose groups are over NCCL: they cannot know.
TEST(GraphCollectivesTest, ARankWhoseGroupsAreStagedTellsTheOthersThatItHasNoGraphs) {
  simt::ResetDevice({});
  CollectiveRank rank(/*with_eval=*/true);
  rank.shared.staged = true;
  ASSERT_TRUE(rank.Open().ok());
  OtherSays other({{0}, {0, 0}});
  Agreement agreement(&other);
  ASSERT_TRUE(rank.External(&agreement).ok());
  EXPECT_EQ(other.heard, (std::vector<std::vector<float>>{{0}, {1, 1}}));
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(rank.RunIsRight()) << run;
  EXPECT_EQ(rank.vm().graph_runs(), 0);
}

}  // namespace
}  // namespace terrace
