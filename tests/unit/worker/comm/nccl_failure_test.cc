// Calls over the fake NCCL that are refused, given up or lost: each ends, and says whose fault it
// was.
//
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/worker/comm/nccl_fixture.h"
#include "worker/comm/cuda_staging.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;

constexpr int kRemoteError = 6;  // ncclRemoteError

using NcclFailureTest = NcclCommunicatorTest;

TEST_F(NcclFailureTest, WithoutAllToAllNoPairIsConnected) {
  all_to_all_ = false;
  OnRanks(3, [](Communicator* group) {
    char bytes[3] = {}, out[3] = {};
    ExpectCode(group->AllToAll(bytes, out, 1), absl::StatusCode::kFailedPrecondition,
               "group data.0: was connected without all-to-all");
    ExpectCode(group->Send(bytes, 1, (group->rank() + 1) % 3), absl::StatusCode::kInvalidArgument,
               "for messages");
  });
}

TEST_F(NcclFailureTest, APeerThatCannotBeIsRefused) {
  const Stream stream(0);
  GroupOptions options = Options(0, 1);
  options.message_peers = {0};
  const auto group = ConnectNccl(options, nullptr, stream.stream);
  ExpectCode(group.status(), absl::StatusCode::kInvalidArgument,
             "message_peers: got member 0 of 1");
}

TEST_F(NcclFailureTest, PinnedMemoryThatIsNotThereIsNamed) {
  const auto staging = CudaStaging(nullptr)({}, int64_t{1} << 60);
  ExpectCode(staging.status(), absl::StatusCode::kResourceExhausted,
             "cannot pin 1152921504606846976 bytes of host memory: out of memory");
}

TEST_F(NcclFailureTest, AbortEndsCallsOfOtherThreads) {
  messages_ = true;
  const int aborted = fake_nccl::Aborted();
  OnRanks(2, [](Communicator* group) {
    std::vector<float> data(1'000);
    if (group->rank() == 1) {  // alive, and silent
      std::this_thread::sleep_for(milliseconds(200));
      return group->Abort();
    }
    absl::Status receive, sum;
    std::jthread receiver([&] { receive = group->Receive(data.data(), 4, 1); });
    std::jthread summer([&] { sum = group->AllReduce(data.data(), 1'000, ReduceType::kF32); });
    std::this_thread::sleep_for(milliseconds(50));
    const auto start = std::chrono::steady_clock::now();
    group->Abort();
    receiver.join();
    summer.join();
    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(100));
    ExpectCode(receive, absl::StatusCode::kCancelled, "group data.0: given up by this rank");
    ExpectCode(sum, absl::StatusCode::kCancelled, "group data.0: given up by this rank");
    EXPECT_EQ(group->Send(data.data(), 4, 1).code(), absl::StatusCode::kCancelled);
  });
  EXPECT_EQ(fake_nccl::Aborted() - aborted, 2 * 3) << "nothing is closed in peace after Abort";
}

TEST_F(NcclFailureTest, ALostPeerIsUnavailableWithGroupRankAndOperation) {
  OnRanks(2, [](Communicator* group) {
    ASSERT_TRUE(group->Barrier().ok());
    if (group->rank() == 0) FailOnce("all-gather", 0, {.error = kRemoteError});
    if (group->rank() == 1) return std::this_thread::sleep_for(milliseconds(150)), group->Abort();
    std::this_thread::sleep_for(milliseconds(20));
    const auto start = std::chrono::steady_clock::now();
    std::vector<float> data(8);
    const absl::Status status = group->AllGather(data.data(), data.data(), 16);
    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(100));
    ExpectCode(
        status, absl::StatusCode::kUnavailable,
        "group data.0: rank 10: all-gather of 16 bytes a member failed: NCCL: remote process "
        "exited or there was a network error: the last line of its log; a member is lost");
    EXPECT_EQ(group->Barrier(), status) << "a broken group stays broken";
  });
}

TEST_F(NcclFailureTest, AFailureEndsTheCallsOfTheGroupsOtherThreads) {
  messages_ = true;
  OnRanks(2, [](Communicator* group) {
    std::vector<float> data(8);
    ASSERT_TRUE(group->Barrier().ok());
    if (group->rank() == 1) return std::this_thread::sleep_for(milliseconds(150)), group->Abort();
    FailOnce("all-gather", 0, {.error = kRemoteError});
    absl::Status receive;
    std::jthread receiver([&] { receive = group->Receive(data.data(), 4, 1); });
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_FALSE(group->AllGather(data.data(), data.data(), 16).ok());
    receiver.join();
    ExpectCode(receive, absl::StatusCode::kUnavailable, "all-gather of 16 bytes");
  });
}

TEST_F(NcclFailureTest, ACallThatDoesNotEndIsGivenUpAfterTheTimeout) {
  timeout_ms_ = 200;
  messages_ = true;
  OnRanks(2, [](Communicator* group) {
    ASSERT_TRUE(group->Barrier().ok());
    if (group->rank() == 1) return std::this_thread::sleep_for(milliseconds(500)), group->Abort();
    FailOnce("messages", 0, {.hangs = true});
    const auto start = std::chrono::steady_clock::now();
    float value = 1;
    ExpectCode(group->Send(&value, 4, 1), absl::StatusCode::kUnavailable,
               "group data.0: rank 10: a message of 4 bytes with rank 11 has not ended after 20");
    EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(200));
    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(400));
  });
}

TEST_F(NcclFailureTest, MembersThatCallDifferentlyAreToldAndDoNotHang) {
  timeout_ms_ = 300;
  OnRanks(2, [](Communicator* group) {
    std::vector<float> data(8);
    const absl::Status status =
        group->rank() == 0
            ? group->AllGather(data.data(), data.data(), 16)
            : group->ReduceScatter(data.data(), data.data() + 4, 4, ReduceType::kF32);
    EXPECT_THAT(status.code(),
                testing::AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnavailable));
  });
  EXPECT_THAT(fake_nccl::TakeMisuse(), testing::SizeIs(1));
}

TEST_F(NcclFailureTest, AMemberThatNeverComesIsUnavailableAfterTheTimeout) {
  timeout_ms_ = 100;
  MapRendezvous store;
  const Stream stream(0);
  const auto first = ConnectNccl(Options(0, 2), &store, stream.stream);
  ExpectCode(first.status(), absl::StatusCode::kUnavailable,
             "group data.0: rank 10: connecting of 2 members has not ended after 10");
  MapRendezvous empty;
  const auto second = ConnectNccl(Options(1, 2), &empty, stream.stream);
  ExpectCode(second.status(), absl::StatusCode::kUnavailable,
             "group data.0: cannot connect member 1 of 2: key data.0/nccl/all is missing");
}

}  // namespace
}  // namespace terrace
