// SPDX-License-Identifier: Apache-2.0
#include "base/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "tests/support/http_client.h"

namespace terrace {
namespace {

using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_http::Ask;
using testing_http::Connect;
using testing_http::Receive;
using testing_http::Send;

const HttpListen kLoopback = {.option = "--web-listen", .address = "127.0.0.1:0"};

std::unique_ptr<HttpServer> Serve(HttpServer::Handler handler) {
  auto server = HttpServer::Start(kLoopback, std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

// Keeps the replies of all requests, for the test to answer.
class Kept {
 public:
  HttpServer::Handler Handler() {
    return [this](const HttpRequest&, HttpServer::Reply reply) {
      absl::MutexLock lock(&mutex_);
      replies_.push_back(std::move(reply));
    };
  }
  HttpServer::Reply Next() {
    absl::MutexLock lock(&mutex_);
    const auto some = [this] { return !replies_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&some), absl::Seconds(10))) return nullptr;
    HttpServer::Reply reply = std::move(replies_.front());
    replies_.pop_front();
    return reply;
  }

 private:
  absl::Mutex mutex_;
  std::deque<HttpServer::Reply> replies_ ABSL_GUARDED_BY(mutex_);
};

TEST(HttpServerTest, ARequestArrivesInParts) {
  const auto server = Serve([](const HttpRequest& request, const HttpServer::Reply& reply) {
    reply({.body = request.method + " " + request.path + " " + request.query.find("q")->second +
                   " " + request.host + " " + request.authorization,
           .headers = {{"X-One", "1"}}});
  });
  EXPECT_THAT(Ask(server->port(), "GET /a%20b?q=x%2Fy&z=", "Authorization: Bearer t\r\n"),
              AllOf(HasSubstr("200 OK"), HasSubstr("X-One: 1"),
                    HasSubstr("\r\n\r\nGET /a b x/y localhost Bearer t")));
  EXPECT_THAT(Ask(server->port(), "DELETE /"), HasSubstr("405"));
}

TEST(HttpServerTest, AnAnswerThatTakesAWhileHoldsNobodyUp) {
  Kept kept;
  const auto server = Serve([&](const HttpRequest& request, HttpServer::Reply reply) {
    if (request.path == "/now") return reply({.body = "now"});
    kept.Handler()(request, std::move(reply));
  });
  const UniqueFd slow = Connect(server->port());
  ASSERT_TRUE(Send(slow, "GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  const HttpServer::Reply reply = kept.Next();
  ASSERT_TRUE(reply);
  EXPECT_THAT(Ask(server->port(), "GET /now"), HasSubstr("\r\n\r\nnow"));
  std::thread other([&] { reply({.body = "later"}); });
  EXPECT_THAT(Receive(slow), HasSubstr("\r\n\r\nlater"));
  other.join();
  reply({.body = "again"});  // is not heard
}

TEST(HttpServerTest, ABodyIsIgnored) {
  const auto server = Serve([](const HttpRequest& request, const HttpServer::Reply& reply) {
    reply({.body = request.method});
  });
  const UniqueFd fd = Connect(server->port());
  ASSERT_TRUE(Send(fd,
                   "POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n"
                   "\r\nhello"));
  EXPECT_THAT(Receive(fd), HasSubstr("\r\n\r\nPOST"));
}

std::string Posted(const HttpServer& server, const std::string& body) {
  const UniqueFd fd = Connect(server.port());
  const bool sent =
      Send(fd, "POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                   std::to_string(body.size()) + "\r\n\r\n" + body);
  return sent ? Receive(fd) : "";
}

TEST(HttpServerTest, ABodyComesWholeWhereItIsAskedForAndIsBounded) {
  HttpListen listen = kLoopback;
  listen.body_bytes_max = 100'000;
  int calls = 0;
  auto started =
      HttpServer::Start(listen, [&](const HttpRequest& request, const HttpServer::Reply& reply) {
        ++calls;
        reply({.body = request.method + std::to_string(request.body.size()) + request.body});
      });
  ASSERT_TRUE(started.ok()) << started.status();
  const HttpServer& server = **started;
  const std::string whole(listen.body_bytes_max, 'b');  // in several pieces
  EXPECT_THAT(Posted(server, whole), HasSubstr("\r\n\r\nPOST100000" + whole));
  EXPECT_THAT(Posted(server, ""), HasSubstr("\r\n\r\nPOST0"));
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(Posted(server, whole + "b"), AllOf(HasSubstr("413"), HasSubstr("100000 bytes")));
  EXPECT_EQ(calls, 2) << "the handler does not see what is too long";
  EXPECT_THAT(Ask(server.port(), "GET /"), HasSubstr("\r\n\r\nGET0"));
}

TEST(HttpServerTest, PeersThatTakeAllTheyCanLeaveSomeToOthers) {
  const auto server =
      Serve([](const HttpRequest&, const HttpServer::Reply& reply) { reply({.body = "served"}); });
  constexpr int kEach = 150;
  std::vector<UniqueFd> held;
  for (const int peer : {2, 3, 4}) {
    for (int i = 0; i < kEach; ++i) held.push_back(Connect(server->port(), peer));
  }
  for (const int other : {5, 6}) {
    EXPECT_THAT(Ask(server->port(), "GET /", "", other), HasSubstr("served")) << other;
  }
  held.clear();  // what they had is free again
  const auto served = [&] {
    return Ask(server->port(), "GET /", "", 2).find("served") != std::string::npos;
  };
  const auto until = steady_clock::now() + std::chrono::seconds(5);
  while (!served() && steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(served());
}

TEST(HttpServerTest, EndsWithRequestsThatWait) {
  Kept kept;
  auto server = Serve(kept.Handler());
  const UniqueFd waiting = Connect(server->port());
  ASSERT_TRUE(Send(waiting, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  const HttpServer::Reply reply = kept.Next();
  ASSERT_TRUE(reply);
  const auto begin = steady_clock::now();
  server.reset();
  EXPECT_LT(steady_clock::now() - begin, std::chrono::milliseconds(500));
  reply({.body = "too late"});
  EXPECT_THAT(Receive(waiting), AllOf(HasSubstr("503"), Not(HasSubstr("too late"))));
}

TEST(HttpServerTest, AClientThatGoesWhileItWaitsLeavesNothing) {
  Kept kept;
  const auto server = Serve(kept.Handler());
  {
    const UniqueFd gone = Connect(server->port());
    ASSERT_TRUE(Send(gone, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  }
  const HttpServer::Reply reply = kept.Next();
  ASSERT_TRUE(reply);
  reply({.body = "to nobody"});
  const UniqueFd next = Connect(server->port());
  ASSERT_TRUE(Send(next, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  kept.Next()({.body = "to the next"});
  EXPECT_THAT(Receive(next), HasSubstr("to the next"));
}

// A server that answers everything with one stream.
class StreamTest : public testing::Test {
 protected:
  // A client that has asked for it.
  UniqueFd Asked() {
    UniqueFd fd = Connect(server_->port());
    EXPECT_TRUE(Send(fd, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    return fd;
  }
  // Whether writing fails within some seconds.
  bool WritesFail(const std::string& part) {
    const auto until = steady_clock::now() + std::chrono::seconds(10);
    while (steady_clock::now() < until) {
      if (!stream_->Write(part)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  std::shared_ptr<HttpStream> stream_ = std::make_shared<HttpStream>();
  std::unique_ptr<HttpServer> server_ =
      Serve([this](const HttpRequest&, const HttpServer::Reply& reply) {
        reply({.content_type = "text/event-stream", .stream = stream_});
      });
};

TEST_F(StreamTest, PartsArriveAsTheyAreWritten) {
  const UniqueFd fd = Asked();
  std::string got;
  for (const std::string part : {"one;", "two;", "three;"}) {
    EXPECT_TRUE(stream_->Write(part));
    while (got.find(part) == std::string::npos) {
      char bytes[256];
      const ssize_t count = read(fd.get(), bytes, sizeof bytes);
      ASSERT_GT(count, 0) << got;
      got.append(bytes, count);
    }
  }
  stream_->End();
  got += Receive(fd);
  EXPECT_THAT(got, AllOf(HasSubstr("200 OK"), HasSubstr("text/event-stream"), HasSubstr("chunked"),
                         testing::EndsWith("0\r\n\r\n")));
  EXPECT_FALSE(stream_->Write("more"));
}

TEST_F(StreamTest, WhoWritesLearnsThatTheReaderHasGone) {
  Asked();
  EXPECT_TRUE(WritesFail("part"));
}

TEST_F(StreamTest, AReaderThatDoesNotReadEndsIt) {
  const UniqueFd fd = Asked();
  EXPECT_TRUE(WritesFail(std::string(1 << 20, 'x')));
}

TEST_F(StreamTest, EndsWithItsServer) {
  const UniqueFd fd = Asked();
  EXPECT_TRUE(stream_->Write("begun"));
  char byte;
  ASSERT_EQ(read(fd.get(), &byte, 1), 1) << "the server sends";
  const auto begin = steady_clock::now();
  server_.reset();
  EXPECT_LT(steady_clock::now() - begin, std::chrono::milliseconds(500));
  EXPECT_FALSE(stream_->Write("too late"));
  EXPECT_THAT(Receive(fd), HasSubstr("begun"));
}

TEST(HttpServerTest, RefusalsNameTheOptions) {
  HttpListen listen{.option = "--web-listen",
                    .insecure_option = "--web-insecure",
                    .readers = "everybody may read jobs",
                    .address = "0.0.0.0:0"};
  const auto ignore = [](const HttpRequest&, const HttpServer::Reply&) {};
  const auto refused = HttpServer::Start(listen, ignore);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("--web-listen"), HasSubstr("--web-insecure"),
                    HasSubstr("everybody may read jobs")));
}

}  // namespace
}  // namespace terrace
