// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/tcp.h"

namespace terrace {
namespace {

using testing::HasSubstr;

absl::Status Dial(const std::string& from, const std::string& address, std::string_view name) {
  const std::atomic<bool> never = false;
  return DialPeer(from, address, name, never);
}

std::string Why(const absl::Status& status) { return std::string(status.message()); }

TEST(PeersTest, WhoListensIsReachedByItsNameAndByNoOther) {
  const auto listener = PeerListener::Start("127.0.0.1", "worker-1");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string address = (*listener)->address();
  EXPECT_TRUE(Dial("127.0.0.1", address, "worker-1").ok());
  const absl::Status other = Dial("127.0.0.1", address, "worker-2");
  EXPECT_THAT(Why(other), HasSubstr("another one answers, worker-1"));
}

TEST(PeersTest, ADeadAddressIsNamedWithTheReason) {
  const auto socket = ListenTcp("127.0.0.1:0");
  const std::string address = JoinHostPort("127.0.0.1", BoundPort(*socket));
  {
    auto gone = ListenTcp("127.0.0.1:0");
    const std::string dead = JoinHostPort("127.0.0.1", BoundPort(*gone));
    gone->Reset();
    EXPECT_THAT(Why(Dial("", dead, "worker-1")), HasSubstr(dead + ": Connection refused"));
  }
  const absl::Time begin = absl::Now();
  EXPECT_THAT(Why(Dial("", address, "worker-1")), HasSubstr("connected, but says nothing"));
  EXPECT_LT(absl::Now() - begin, absl::Milliseconds(kDialPeerMs) + absl::Seconds(2));
}

TEST(PeersTest, TheDataAddressIsTheOneThatIsNamed) {
  EXPECT_EQ(DataAddress("lo", "10.0.0.1:7070").value(), "127.0.0.1");
  EXPECT_EQ(DataAddress("127.0.0.1", "10.0.0.1:7070").value(), "127.0.0.1");
  const auto wrong = DataAddress("eth77", "10.0.0.1:7070");
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Why(wrong.status()), HasSubstr("--data-address: got eth77"));
  EXPECT_THAT(Why(wrong.status()), HasSubstr("lo (127.0.0.1)"));
  EXPECT_TRUE(DataAddress("", "127.0.0.1:7070").ok());
}

}  // namespace
}  // namespace terrace
