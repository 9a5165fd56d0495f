// SPDX-License-Identifier: Apache-2.0
#include "worker/link/link.h"

#include <sys/socket.h>

#include <filesystem>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

class LinkTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "link.sock";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::string path_;
};

v1::LinkMessage Report(int64_t epoch) {
  v1::LinkMessage message;
  message.mutable_report()->set_job("books-1");
  message.mutable_report()->set_epoch(epoch);
  return message;
}

TEST_F(LinkTest, MessagesArriveInOrderBothWays) {
  auto listener = LinkListener::Listen(path_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto daemon = DialLink(path_);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  auto rank = listener->Accept();
  ASSERT_TRUE(rank.ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE((*rank)->Send(Report(i)).ok());
  for (int i = 0; i < 100; ++i) {
    const auto message = (*daemon)->Receive();
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(message->report().epoch(), i);
  }
  v1::LinkMessage go;
  go.mutable_go()->set_job("books-1");
  ASSERT_TRUE((*daemon)->Send(go).ok());
  EXPECT_EQ((*rank)->Receive()->go().job(), "books-1");
}

TEST_F(LinkTest, LargeMessagePassesAndOversizedIsRefusedBeforeSending) {
  auto listener = LinkListener::Listen(path_);
  ASSERT_TRUE(listener.ok());
  auto daemon = DialLink(path_);
  auto rank = listener->Accept();
  v1::LinkMessage message;
  message.mutable_kv_set()->set_value(std::string(3 << 20, 'x'));
  std::thread sender([&] { EXPECT_TRUE((*rank)->Send(message).ok()); });
  EXPECT_EQ((*daemon)->Receive()->kv_set().value().size(), 3u << 20);
  sender.join();
  message.mutable_kv_set()->set_value(std::string(kMaxLinkMessageBytes + 1, 'x'));
  EXPECT_EQ((*rank)->Send(message).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LinkTest, LostPeerIsUnavailableForReceiveAndSend) {
  auto listener = LinkListener::Listen(path_);
  ASSERT_TRUE(listener.ok());
  auto daemon = DialLink(path_);
  auto rank = listener->Accept();
  daemon->reset();
  EXPECT_EQ((*rank)->Receive().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*rank)->Send(Report(1)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LinkTest, RankAcceptsADaemonAgainAfterItsRestart) {
  auto listener = LinkListener::Listen(path_);
  ASSERT_TRUE(listener.ok());
  for (int daemon_life = 0; daemon_life < 3; ++daemon_life) {
    auto daemon = DialLink(path_);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    auto rank = listener->Accept();
    ASSERT_TRUE((*rank)->Send(Report(daemon_life)).ok());
    EXPECT_EQ((*daemon)->Receive()->report().epoch(), daemon_life);
  }
}

TEST_F(LinkTest, HostileLengthIsInvalidArgument) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  LinkConnection connection{UniqueFd(fds[0])};
  UniqueFd peer(fds[1]);
  ASSERT_EQ(write(peer.get(), "\xff\xff\xff\x7f", 4), 4);
  EXPECT_EQ(connection.Receive().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LinkTest, MalformedMessageIsInvalidArgument) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  LinkConnection connection{UniqueFd(fds[0])};
  UniqueFd peer(fds[1]);
  ASSERT_EQ(write(peer.get(), "\x03\x00\x00\x00\xff\xff\xff", 7), 7);
  EXPECT_EQ(connection.Receive().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LinkTest, ShutdownAndCloseWakeBlockedThreads) {
  auto listener = LinkListener::Listen(path_);
  ASSERT_TRUE(listener.ok());
  auto daemon = DialLink(path_);
  auto rank = listener->Accept();
  std::thread receiver(
      [&] { EXPECT_EQ((*rank)->Receive().status().code(), absl::StatusCode::kUnavailable); });
  std::thread acceptor(
      [&] { EXPECT_EQ(listener->Accept().status().code(), absl::StatusCode::kUnavailable); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  (*rank)->Shutdown();
  listener->Close();
  receiver.join();
  acceptor.join();
}

TEST_F(LinkTest, RunDirectoriesMayBeLongerThanASocketPath) {
  const std::filesystem::path deep = folder_ / std::string(120, 'd');
  std::filesystem::create_directories(deep);
  auto listener = LinkListener::Listen((deep / "link.sock").string());
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(DialLink((deep / "link.sock").string()).ok());
}

TEST_F(LinkTest, DiallingWhereNobodyListensIsUnavailable) {
  EXPECT_EQ(DialLink(path_).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace terrace
