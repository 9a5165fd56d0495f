// SPDX-License-Identifier: Apache-2.0
#include "base/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/tcp.h"
#include "base/unique_fd.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

UniqueFd Connect(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* any = reinterpret_cast<const sockaddr*>(&address);
  return connect(fd.get(), any, sizeof address) == 0 ? std::move(fd) : UniqueFd();
}

std::string Ask(int port, const std::string& request) {
  const UniqueFd fd = Connect(port);
  const std::string text = request + " HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
  if (send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char part[4096];
  for (ssize_t got = 0; (got = recv(fd.get(), part, sizeof part, 0)) > 0;) answer.append(part, got);
  return answer;
}

std::unique_ptr<MetricsServer> Serve() {
  auto server = MetricsServer::Start({.address = "127.0.0.1:0"}, [] { return "up 1\n"; });
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(MetricsServerTest, ServesItsTextAtOnePath) {
  const auto server = Serve();
  EXPECT_THAT(Ask(server->port(), "GET /metrics"),
              AllOf(HasSubstr("200 OK"), HasSubstr("version=0.0.4"), HasSubstr("\r\n\r\nup 1\n")));
  EXPECT_THAT(Ask(server->port(), "GET /"), HasSubstr("404"));
  EXPECT_THAT(Ask(server->port(), "DELETE /metrics"), HasSubstr("405"));
}

TEST(MetricsServerTest, ConnectionsThatNeverSpeakKeepNoScrapeWaitingAndAreClosed) {
  const auto server = Serve();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Connect(server->port()));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(Ask(server->port(), "GET /metrics"), HasSubstr("up 1"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  for (const UniqueFd& fd : silent) {  // in the order of age: all after ten seconds
    char byte;
    EXPECT_EQ(recv(fd.get(), &byte, 1, 0), 0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST(MetricsServerTest, EndsAtOnceAlsoWithOpenConnections) {
  auto server = Serve();
  const UniqueFd silent = Connect(server->port());
  const auto begin = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
}

TEST(MetricsServerTest, AnAddressInUseIsSaidClearly) {
  const auto taken = ListenTcp("127.0.0.1:0");
  const std::string address = "127.0.0.1:" + std::to_string(BoundPort(*taken));
  const auto server = MetricsServer::Start({.address = address}, [] { return ""; });
  EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(server.status().message()),
              AllOf(HasSubstr("--metrics-listen"), HasSubstr(address), HasSubstr("in use")));
}

TEST(MetricsServerTest, OffLoopbackNeedsTlsOrAWordThatItDoesNot) {
  MetricsListen listen{.address = "0.0.0.0:0"};
  const auto refused = MetricsServer::Start(listen, [] { return ""; });
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--metrics-insecure"));
  listen.insecure = true;
  EXPECT_TRUE(MetricsServer::Start(listen, [] { return ""; }).ok());
}

}  // namespace
}  // namespace terrace
