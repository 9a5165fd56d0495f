// SPDX-License-Identifier: Apache-2.0
#include "base/http/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/tcp.h"
#include "base/unique_fd.h"
#include "tests/support/http_client.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_http::Ask;
using testing_http::Connect;

std::unique_ptr<HttpServer> Serve() {
  auto server = ServeMetrics({.address = "127.0.0.1:0"}, [] { return "up 1\n"; });
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(MetricsServerTest, ServesItsTextAtOnePath) {
  const auto server = Serve();
  EXPECT_THAT(Ask(server->port(), "GET /metrics"),
              AllOf(HasSubstr("200 OK"), HasSubstr("version=0.0.4"), HasSubstr("\r\n\r\nup 1\n")));
  EXPECT_THAT(Ask(server->port(), "GET /"), HasSubstr("404"));
  EXPECT_THAT(Ask(server->port(), "DELETE /metrics"), HasSubstr("405"));
  EXPECT_THAT(Ask(server->port(), "POST /metrics"), HasSubstr("405"));
}

TEST(MetricsServerTest, ManyScrapesAskForTheTextOnce) {
  int asked = 0;
  const auto server = *ServeMetrics({.address = "127.0.0.1:0"},
                                    [&asked] { return "asked " + std::to_string(++asked) + "\n"; });
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 50; ++i) Ask(server->port(), "GET /metrics");
  const int texts = 1 + static_cast<int>((absl::Now() - begin) / kMetricsTextKept);
  EXPECT_LE(asked, texts);
  absl::SleepFor(kMetricsTextKept);
  const int before = asked;
  EXPECT_THAT(Ask(server->port(), "GET /metrics"),
              HasSubstr("asked " + std::to_string(before + 1) + "\n"));
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
  const auto server = ServeMetrics({.address = address}, [] { return ""; });
  EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(server.status().message()),
              AllOf(HasSubstr("--metrics-listen"), HasSubstr(address), HasSubstr("in use")));
}

TEST(MetricsServerTest, OffLoopbackNeedsTlsOrAWordThatItDoesNot) {
  HttpListen listen{.address = "0.0.0.0:0"};
  const auto refused = ServeMetrics(listen, [] { return ""; });
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--metrics-insecure"));
  listen.insecure = true;
  EXPECT_TRUE(ServeMetrics(listen, [] { return ""; }).ok());
}

}  // namespace
}  // namespace terrace
