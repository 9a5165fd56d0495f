// Collectives of a group over the fake NCCL while somebody captures its stream, and around runs of
// the graph that is made of it. The fake's streams cannot be captured: what is put on them happens
// at once.
//
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/worker/comm/nccl_fixture.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using NcclGraphTest = NcclCommunicatorTest;

constexpr int kUnhandledCudaError = 1, kRemoteError = 6;  // ncclResult_t

TEST_F(NcclGraphTest, CapturedCallsAreNotWaitedForAndTheirBytesBelongToRuns) {
  // Longer than the calls, which nobody waits for.
  std::vector<std::vector<float>> of_ranks(2, std::vector<float>(64, 1));
  OnRanks(2, [&](NcclCommunicator* group) {
    GraphCollectives* const graph = group->graph_collectives();
    ASSERT_NE(graph, nullptr);
    std::vector<float>& data = of_ranks[group->rank()];
    // Whoever waited for a call would wait for ever.
    if (group->rank() == 0) FailOnce("all-gather", 0, {.hangs = true});
    ASSERT_TRUE(graph->BeginCapture().ok());
    ASSERT_TRUE(group->AllReduce(data.data(), 64, ReduceType::kF32).ok());
    const int64_t bytes = graph->EndCapture().value_or(-1);
    EXPECT_EQ(bytes, 2 * 64 * 4 / 2) << "of an all-reduce of two";
    EXPECT_EQ(group->bytes_sent(), 0);
    ASSERT_TRUE(graph->BeginRun(0).ok());
    EXPECT_TRUE(graph->CheckRun().ok());
    graph->EndRun(bytes);
    graph->EndRun(bytes);
    EXPECT_EQ(group->bytes_sent(), 2 * bytes);
    fake_nccl::SetFaults(nullptr);
    group->Abort();  // the gather of the all-reduce never ends
  });
}

TEST_F(NcclGraphTest, AfterACaptureCallsAreWaitedForAgain) {
  OnRanks(2, [](NcclCommunicator* group) {
    GraphCollectives* const graph = group->graph_collectives();
    ASSERT_TRUE(graph->BeginCapture().ok());
    EXPECT_EQ(graph->EndCapture().value_or(-1), 0);
    std::vector<float> data(64, 1);
    ASSERT_TRUE(group->AllReduce(data.data(), 64, ReduceType::kF32).ok());
    EXPECT_EQ(data, std::vector<float>(64, 2));
  });
}

TEST_F(NcclGraphTest, AGroupThatNcclBreaksWhileItIsCapturedSaysSoAtTheEnd) {
  std::vector<float> data(64, 1);
  OnRanks(2, [&](NcclCommunicator* group) {
    GraphCollectives* const graph = group->graph_collectives();
    ASSERT_TRUE(group->Barrier().ok());
    if (group->rank() == 1) return std::this_thread::sleep_for(milliseconds(150)), group->Abort();
    ASSERT_TRUE(graph->BeginCapture().ok());
    fake_nccl::RefuseNext(kUnhandledCudaError);
    const absl::Status status = group->AllGather(data.data(), data.data(), 16);
    ExpectCode(status, absl::StatusCode::kInternal, "group data.0: rank 10: all-gather of 16");
    EXPECT_EQ(graph->EndCapture().status(), status);
    EXPECT_EQ(group->Barrier(), status) << "nor does it take calls one by one";
  });
}

TEST_F(NcclGraphTest, ALostMemberIsSeenWhileAGraphRuns) {
  std::vector<float> data(64, 1);
  OnRanks(2, [&](NcclCommunicator* group) {
    GraphCollectives* const graph = group->graph_collectives();
    ASSERT_TRUE(group->Barrier().ok());
    if (group->rank() == 1) return std::this_thread::sleep_for(milliseconds(150)), group->Abort();
    FailOnce("all-gather", 0, {.error = kRemoteError});
    ASSERT_TRUE(graph->BeginCapture().ok());
    // The fake runs it at once, so that it may fail before it is waited for.
    absl::Status status = group->AllGather(data.data(), data.data(), 16);
    graph->EndCapture().IgnoreError();
    if (status.ok()) status = graph->BeginRun(0);
    while (status.ok()) status = graph->CheckRun();
    ExpectCode(status, absl::StatusCode::kUnavailable, "group data.0: rank 10: ");
    ExpectCode(status, absl::StatusCode::kUnavailable, "; a member is lost");
    EXPECT_EQ(graph->BeginRun(0), status) << "a broken group stays broken";
  });
}

TEST_F(NcclGraphTest, AGraphThatDoesNotEndIsGivenUpAfterTheTimeout) {
  timeout_ms_ = 200;
  OnRanks(2, [](NcclCommunicator* group) {
    ASSERT_TRUE(group->Barrier().ok());
    if (group->rank() == 1) return std::this_thread::sleep_for(milliseconds(500)), group->Abort();
    GraphCollectives* const graph = group->graph_collectives();
    ASSERT_TRUE(graph->BeginRun(0).ok());
    const auto start = std::chrono::steady_clock::now();
    absl::Status status;
    while (status.ok()) status = graph->CheckRun();
    EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(190));
    ExpectCode(status, absl::StatusCode::kUnavailable,
               "group data.0: rank 10: a graph of 2 members has not ended after 2");
  });
}

// A step of any length is no lost member: only what it takes beyond that is.
TEST_F(NcclGraphTest, AGraphHasTheTimeOfItsComputationBesideTheTimeout) {
  timeout_ms_ = 100;
  OnRanks(2, [](NcclCommunicator* group) {
    ASSERT_TRUE(group->Barrier().ok());
    if (group->rank() == 1) return std::this_thread::sleep_for(milliseconds(800)), group->Abort();
    GraphCollectives* const graph = group->graph_collectives();
    ASSERT_TRUE(graph->BeginRun(/*one_by_one_ns=*/100'000'000).ok());
    const auto start = std::chrono::steady_clock::now();
    absl::Status status;
    while (status.ok()) status = graph->CheckRun();
    EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(490)) << "100 + 4 * 100";
    ExpectCode(status, absl::StatusCode::kUnavailable, "a graph of 2 members has not ended after");
  });
}

TEST_F(NcclGraphTest, AnAbortEndsTheWaitForAGraph) {
  OnRanks(2, [](NcclCommunicator* group) {
    GraphCollectives* const graph = group->graph_collectives();
    ASSERT_TRUE(graph->BeginRun(0).ok());
    group->Abort();
    ExpectCode(graph->CheckRun(), absl::StatusCode::kCancelled, "given up by this rank");
  });
}

}  // namespace
}  // namespace terrace
