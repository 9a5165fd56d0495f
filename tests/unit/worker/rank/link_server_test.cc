// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/link_server.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

class LinkServerTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) / "link_server_test.sock";
    auto server = LinkServer::Start(
        {.path = path_,
         .job = "books-1",
         .epoch = 4,
         .rank = 2,
         .on_go = [this] { ++goes_; },
         .on_stop = [this](bool checkpoint) { checkpoint ? ++stops_ : ++kills_; }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::unique_ptr<LinkConnection> Dial() {
    auto connection = DialLink(path_);
    EXPECT_TRUE(connection.ok()) << connection.status();
    return *std::move(connection);
  }

  std::string path_;
  std::atomic<int> goes_{0}, stops_{0}, kills_{0};
  std::unique_ptr<LinkServer> server_;
};

v1::RankReport Report(v1::RankState state) {
  v1::RankReport report;
  report.set_state(state);
  return report;
}

v1::JobEvent Step(int64_t step) {
  v1::JobEvent event;
  event.mutable_step()->set_step(step);
  return event;
}

v1::JobEvent Eval(int64_t step) {
  v1::JobEvent event;
  event.mutable_eval()->set_step(step);
  return event;
}

TEST_F(LinkServerTest, EveryDaemonLearnsTheLatestState) {
  server_->SetReport(Report(v1::RANK_PREPARING));
  server_->SetReport(Report(v1::RANK_READY));
  for (int life = 0; life < 3; ++life) {
    const auto daemon = Dial();
    EXPECT_EQ(daemon->Receive()->report().state(), v1::RANK_READY) << life;
  }
}

TEST_F(LinkServerTest, ANewDaemonTakesThePlaceOfOneThatHangs) {
  const auto hung = Dial();
  const auto daemon = Dial();
  EXPECT_EQ(hung->Receive().status().code(), absl::StatusCode::kUnavailable);
  server_->SetReport(Report(v1::RANK_RUNNING));
  EXPECT_EQ(daemon->Receive()->report().state(), v1::RANK_RUNNING);
}

TEST_F(LinkServerTest, EventsWaitForADaemonInOrder) {
  for (int64_t i = 0; i < 10; ++i) server_->AddEvent(Step(i));
  const auto daemon = Dial();
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(daemon->Receive()->event().step().step(), i);
}

TEST_F(LinkServerTest, AFullQueueDropsTheOldestStepsAndKeepsTheRest) {
  server_->AddEvent(Eval(7));
  for (size_t i = 0; i < kMaxQueuedEvents + 5; ++i)
    server_->AddEvent(Step(static_cast<int64_t>(i)));
  const auto daemon = Dial();
  EXPECT_EQ(daemon->Receive()->event().eval().step(), 7);
  EXPECT_EQ(daemon->Receive()->event().step().step(), 6);
  for (size_t i = 7; i < kMaxQueuedEvents + 5; ++i) {
    ASSERT_EQ(daemon->Receive()->event().step().step(), static_cast<int64_t>(i));
  }
}

TEST_F(LinkServerTest, CommandsOfAnotherEpochAreIgnored) {
  const auto daemon = Dial();
  v1::LinkMessage go;
  go.mutable_go()->set_job("books-1");
  go.mutable_go()->set_epoch(3);
  ASSERT_TRUE(daemon->Send(go).ok());
  v1::LinkMessage stop;
  stop.mutable_stop()->set_job("books-1");
  stop.mutable_stop()->set_epoch(3);
  ASSERT_TRUE(daemon->Send(stop).ok());
  go.mutable_go()->set_epoch(4);
  ASSERT_TRUE(daemon->Send(go).ok());
  stop.mutable_stop()->set_epoch(5);
  stop.mutable_stop()->set_checkpoint(true);
  ASSERT_TRUE(daemon->Send(stop).ok());
  while (stops_ == 0) std::this_thread::yield();
  EXPECT_EQ(goes_, 1);
  EXPECT_EQ(kills_, 0);
}

TEST_F(LinkServerTest, WaitReturnsWhatTheDaemonAnswers) {
  const auto daemon = Dial();
  std::thread answering([&] {
    const auto set = daemon->Receive();
    EXPECT_EQ(set->kv_set().key(), "group/0");
    EXPECT_EQ(set->kv_set().epoch(), 4);
    const auto wait = daemon->Receive();
    EXPECT_EQ(wait->kv_wait().rank(), 2);
    v1::LinkMessage answer;
    answer.mutable_kv_values()->set_request(wait->kv_wait().request());
    answer.mutable_kv_values()->add_values("abc");
    EXPECT_TRUE(daemon->Send(answer).ok());
  });
  ASSERT_TRUE(server_->Set("group/0", {'x'}).ok());
  const auto values = server_->Wait({"group/1"}, 10'000);
  answering.join();
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(std::string(values->front().begin(), values->front().end()), "abc");
}

TEST_F(LinkServerTest, KeysAndOpenWaitsAreToldAgainToANewDaemon) {
  std::thread waiting([&] { EXPECT_TRUE(server_->Wait({"k"}, 10'000).ok()); });
  ASSERT_TRUE(server_->Set("own", {'1'}).ok());
  for (int life = 0; life < 2; ++life) {
    const auto daemon = Dial();
    int64_t request = 0;
    bool key = false;
    while (request == 0 || !key) {
      const auto message = daemon->Receive();
      ASSERT_TRUE(message.ok());
      if (message->has_kv_wait()) request = message->kv_wait().request();
      if (message->has_kv_set()) key = true;
    }
    if (life == 0) continue;  // it died before it answered
    v1::LinkMessage answer;
    answer.mutable_kv_values()->set_request(request);
    answer.mutable_kv_values()->add_values("v");
    ASSERT_TRUE(daemon->Send(answer).ok());
    waiting.join();
  }
}

TEST_F(LinkServerTest, AWaitWithoutAnAnswerNamesTheKey) {
  const auto values = server_->Wait({"missing"}, 20);
  EXPECT_EQ(values.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(values.status().message()), testing::HasSubstr("missing"));
}

TEST_F(LinkServerTest, FlushReturnsWithoutADaemonAndAfterSendingWithOne) {
  server_->SetReport(Report(v1::RANK_SUCCEEDED));
  const auto start = std::chrono::steady_clock::now();
  server_->Flush(absl::Seconds(10));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  const auto daemon = Dial();
  EXPECT_EQ(daemon->Receive()->report().state(), v1::RANK_SUCCEEDED);
  server_->Flush(absl::Seconds(10));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace terrace
