// Members of a group over Gloo that are lost, silent or slow: processes that are killed.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/worker/comm/gloo_fixture.h"

namespace terrace {
namespace {

class LostPeerTest : public GlooTest {};

TEST_F(LostPeerTest, ALostPeerIsUnavailableWithinASecondAndNamed) {
  ranks_ = {6, 9};
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
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("group data.0: rank 9 is lost"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  waitpid(peer, nullptr, 0);
}

// Of a message that is on its way when the connection breaks Gloo tells nobody. It is far larger
// than what sockets hold.
constexpr int64_t kLongBytes = int64_t{64} << 20;

TEST_F(LostPeerTest, APeerThatIsLostWhileItTakesAMessageIsNamed) {
  ranks_ = {6, 9};
  const pid_t peer = fork();
  if (peer == 0) {
    auto group = Join(1, 2);
    if (!group.ok()) _exit(1);
    std::vector<char> data(kLongBytes);
    std::thread receives([&] { (*group)->Receive(data.data(), kLongBytes, 0).IgnoreError(); });
    usleep(200'000);  // until that is announced
    raise(SIGSTOP);
    receives.join();
    _exit(1);
  }
  auto group = Join(0, 2);
  ASSERT_TRUE(group.ok()) << group.status();
  waitpid(peer, nullptr, WUNTRACED);
  std::thread kills([&] {
    usleep(200'000);  // until the sockets are full
    kill(peer, SIGKILL);
  });
  const std::vector<char> data(kLongBytes);
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = (*group)->Send(data.data(), kLongBytes, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 9 is lost"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  kills.join();
  waitpid(peer, nullptr, 0);
}

TEST_F(LostPeerTest, APeerThatIsLostWhileItSendsAMessageIsNamed) {
  ranks_ = {6, 9};
  const pid_t peer = fork();
  if (peer == 0) {
    auto group = Join(1, 2);
    if (!group.ok()) _exit(1);
    const std::vector<char> data(kLongBytes, 1);
    (*group)->Send(data.data(), kLongBytes, 0).IgnoreError();
    _exit(1);
  }
  auto group = Join(0, 2);
  ASSERT_TRUE(group.ok()) << group.status();
  std::vector<char> data(kLongBytes);
  std::thread kills([&] {  // when it has just begun
    while (*static_cast<volatile char*>(data.data()) == 0) continue;
    kill(peer, SIGKILL);
  });
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = (*group)->Receive(data.data(), kLongBytes, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 9 is lost"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  EXPECT_EQ(data.back(), 0) << "it was whole";
  kills.join();
  waitpid(peer, nullptr, 0);
}

TEST_F(LostPeerTest, ASlowPeerIsWaitedForAndASilentOneNamedAfterTheTimeout) {
  ranks_ = {6, 9};
  const pid_t peer = fork();
  if (peer == 0) {
    auto group = Join(1, 2);
    if (!group.ok()) _exit(1);
    usleep(1'500'000);
    const int late = 7;
    (*group)->Send(&late, sizeof late, 0).IgnoreError();
    while (true) pause();
  }
  auto group = Join(0, 2, 2'500);
  ASSERT_TRUE(group.ok()) << group.status();
  int received = 0;
  EXPECT_EQ((*group)->Receive(&received, sizeof received, 1), absl::OkStatus());
  EXPECT_EQ(received, 7);
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = (*group)->Receive(&received, sizeof received, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("rank 9 is lost: no message for 2500 ms"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  kill(peer, SIGKILL);
  waitpid(peer, nullptr, 0);
}

TEST_F(LostPeerTest, ACallMayWaitForLongerThanConnectingMay) {
  ranks_ = {6, 9};
  const pid_t peer = fork();
  if (peer == 0) {
    auto group = Join(1, 2);
    if (!group.ok()) _exit(1);
    usleep(2'500'000);
    const int late = 7;
    (*group)->Send(&late, sizeof late, 0).IgnoreError();
    while (true) pause();
  }
  auto group = Join(0, 2, /*timeout_ms=*/1'000, /*call_timeout_ms=*/30'000);
  ASSERT_TRUE(group.ok()) << group.status();
  int received = 0;
  EXPECT_EQ((*group)->Receive(&received, sizeof received, 1), absl::OkStatus());
  EXPECT_EQ(received, 7);
  kill(peer, SIGKILL);
  waitpid(peer, nullptr, 0);
}

// In a ring a member waits for its left neighbour, while what it sends fails on the right.
TEST_F(LostPeerTest, ALostPeerIsNamedByAMemberThatWaitsForAnother) {
  ranks_ = {4, 6, 9};
  const pid_t silent = fork();
  if (silent == 0) {
    auto group = Join(0, 3);
    while (group.ok()) pause();
    _exit(1);
  }
  const pid_t lost = fork();
  if (lost == 0) {
    auto group = Join(2, 3);
    if (!group.ok()) _exit(1);
    usleep(300'000);  // until what is sent to it is under way
    raise(SIGKILL);
  }
  auto group = Join(1, 3);
  ASSERT_TRUE(group.ok()) << group.status();
  std::vector<char> own(1 << 10), all(3 << 10);
  const absl::Status status = (*group)->AllGather(own.data(), all.data(), own.size());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 9 is lost"));
  kill(silent, SIGKILL);
  waitpid(silent, nullptr, 0);
  waitpid(lost, nullptr, 0);
}

TEST_F(LostPeerTest, APeerThatNeverComesIsNamedAfterTheTimeout) {
  const auto group = Join(0, 2, 100);
  EXPECT_EQ(group.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(group.status().message()), testing::HasSubstr("data.0"));
}

}  // namespace
}  // namespace terrace
