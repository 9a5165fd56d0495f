// SPDX-License-Identifier: Apache-2.0
#include "base/tcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(TcpTest, OnlyAddressesOfThisMachineAreLoopback) {
  for (const char* address :
       {"127.0.0.1:7070", "127.3.2.1:0", "localhost:1", "[::1]:7070", "unix:/run/x"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:7070", "10.0.0.1:7070", "[::]:7070", ":7070",
                              "localhost.example.org:1", "127.example.org:1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(TcpTest, AFreePortIsTakenAndTold) {
  const auto fd = ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_GT(BoundPort(*fd), 0);
  const auto again = ListenTcp("127.0.0.1:" + std::to_string(BoundPort(*fd)));
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("in use"));
}

TEST(TcpTest, WhatIsNoAddressIsSaid) {
  for (const char* wrong : {"9400", "127.0.0.1", "127.0.0.1:port", "127.0.0.1:70000"}) {
    EXPECT_EQ(ListenTcp(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(TcpTest, APortIsANumberOf16Bits) {
  for (const char* good : {"127.0.0.1:0", "host:65535", "[::1]:7070", ":7070", "unix:/run/x"}) {
    EXPECT_TRUE(CheckHostPort("--coordinator", good).ok()) << good;
  }
  for (const char* wrong :
       {"host:65536", "host:-1", "host", "host:", "host:http", "host:1e3", ""}) {
    EXPECT_THAT(std::string(CheckHostPort("--coordinator", wrong).message()),
                HasSubstr(std::string("--coordinator: got \"") + wrong + "\", must be host:port"));
  }
}

}  // namespace
}  // namespace terrace
