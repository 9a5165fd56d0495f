// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/communicator.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/file_rendezvous.h"
#include "worker/comm/interface_address.h"

namespace terrace {
namespace {

class CommunicatorTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank, int size,
                                                     int64_t timeout_ms = 10'000) {
    FileRendezvous store(folder_);
    return ConnectGloo({.name = "data_parallel.0",
                        .rank = rank,
                        .size = size,
                        .interface_address = "127.0.0.1",
                        .timeout_ms = timeout_ms},
                       &store);
  }

  // Runs `body` on one thread a rank.
  void OnRanks(int size, const std::function<void(Communicator*)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        auto group = Join(rank, size);
        ASSERT_TRUE(group.ok()) << group.status();
        body(group->get());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::filesystem::path folder_;
};

TEST_F(CommunicatorTest, AGroupOfOneNeedsNoStore) {
  auto group = ConnectGloo({.name = "alone", .rank = 0, .size = 1}, nullptr);
  ASSERT_TRUE(group.ok());
  float value = 3;
  EXPECT_TRUE((*group)->AllReduce(&value, 1, ReduceType::kF32).ok());
  EXPECT_EQ(value, 3);
}

TEST_F(CommunicatorTest, AllReduceSumsOverTwoAndFourRanks) {
  for (int size : {2, 4}) {
    std::filesystem::remove_all(folder_);
    OnRanks(size, [size](Communicator* group) {
      for (int64_t n : {1, 7, 100'003}) {
        std::vector<float> data(n, static_cast<float>(group->rank() + 1));
        ASSERT_TRUE(group->AllReduce(data.data(), n, ReduceType::kF32).ok());
        EXPECT_THAT(data, testing::Each(static_cast<float>(size * (size + 1) / 2))) << n;
      }
    });
  }
}

TEST_F(CommunicatorTest, AllReduceGivesTheSameBitsOnEveryRankAndRun) {
  constexpr int kRanks = 4;
  std::vector<std::vector<float>> results(2 * kRanks);
  for (int run = 0; run < 2; ++run) {
    std::filesystem::remove_all(folder_);
    OnRanks(kRanks, [&](Communicator* group) {
      std::vector<float>& data = results[run * kRanks + group->rank()];
      data.resize(50'021);
      for (size_t i = 0; i < data.size(); ++i)
        data[i] = 1.0f / static_cast<float>(3 * i + 7 * group->rank() + 1);
      ASSERT_TRUE(group->AllReduce(data.data(), data.size(), ReduceType::kF32).ok());
    });
  }
  for (const auto& result : results) {
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0);
  }
}

TEST_F(CommunicatorTest, AllReduceOfBF16RoundsToNearestEven) {
  OnRanks(2, [](Communicator* group) {
    // 1 + 2^-8 lies between two bf16 values: to the even one. 1 + 3 * 2^-8 goes up.
    std::vector<uint16_t> data = group->rank() == 0 ? std::vector<uint16_t>{0x3f80, 0x3f80}
                                                    : std::vector<uint16_t>{0x3b80, 0x3c40};
    ASSERT_TRUE(group->AllReduce(data.data(), 2, ReduceType::kBF16).ok());
    EXPECT_THAT(data, testing::ElementsAre(0x3f80, 0x3f82));
  });
}

TEST_F(CommunicatorTest, BroadcastCopiesTheRootsBytes) {
  OnRanks(4, [](Communicator* group) {
    std::vector<char> data(1000, static_cast<char>(group->rank()));
    ASSERT_TRUE(group->Broadcast(data.data(), data.size(), 2).ok());
    EXPECT_THAT(data, testing::Each(char{2}));
    EXPECT_TRUE(group->Barrier().ok());
  });
}

TEST_F(CommunicatorTest, ALostPeerIsUnavailableWithinASecond) {
  const pid_t peer = fork();
  if (peer == 0) {
    auto group = Join(1, 2);
    if (!group.ok()) _exit(1);
    raise(SIGKILL);
  }
  auto group = Join(0, 2);
  ASSERT_TRUE(group.ok()) << group.status();
  const auto start = std::chrono::steady_clock::now();
  std::vector<float> data(1 << 20, 1);
  absl::Status status;
  while (status.ok()) status = (*group)->AllReduce(data.data(), data.size(), ReduceType::kF32);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("data_parallel.0"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  waitpid(peer, nullptr, 0);
}

TEST_F(CommunicatorTest, APeerThatNeverComesIsNamedAfterTheTimeout) {
  const auto group = Join(0, 2, 100);
  EXPECT_EQ(group.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(group.status().message()), testing::HasSubstr("data_parallel.0"));
}

TEST(InterfaceAddressTest, IsANumericAddress) {
  EXPECT_THAT(PrimaryAddress(), testing::MatchesRegex("[0-9.]+"));
}

}  // namespace
}  // namespace terrace
