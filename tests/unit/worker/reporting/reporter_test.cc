// SPDX-License-Identifier: Apache-2.0
#include "worker/reporting/reporter.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "worker/flight/flight_recorder.h"
#include "worker/reporting/link_server.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class ReporterTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("reporter-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    reporter_.reset();
    link_.reset();
    flight_.reset();
    fs::remove_all(folder_);
  }

  void Start(uint32_t rank, absl::Duration news_wait = kNewsWait) {
    config_.set_job("books-1");
    config_.set_rank(rank);
    config_.set_run_directory(folder_.string());
    config_.mutable_spec()->mutable_train()->set_steps(1000);
    flight_ = *FlightWriter::Create(folder_.string(), "", 0, &clock_);
    link_ = *LinkServer::Start({.path = (folder_ / "link.sock").string(),
                                .job = "books-1",
                                .epoch = 1,
                                .rank = rank,
                                .on_go = [] {},
                                .on_stop = [](bool) {},
                                .on_sent =
                                    [this](const v1::LinkMessage& message) {
                                      if (const int64_t step = LastStep(message); step > 0)
                                        flight_->SetToldStep(step);
                                    },
                                .news_wait = news_wait});
    reporter_ = std::make_unique<Reporter>(config_, &clock_);
    reporter_->SetFlight(flight_.get());
    reporter_->SetLink(link_.get());
  }
  std::unique_ptr<LinkConnection> Dial() { return *DialLink((folder_ / "link.sock").string()); }

  void Step(int64_t step, bool log = true) {
    v1::StepEvent event;
    event.set_step(step);
    event.set_loss(1.0 / static_cast<double>(step));
    v1::RankMetrics metrics;
    metrics.set_steps(step);
    reporter_->Step(event, metrics, log);
  }
  // Of the next messages, until that many have come.
  static std::vector<int64_t> NextSteps(LinkConnection* daemon, size_t count) {
    std::vector<int64_t> steps;
    while (steps.size() < count) {
      const auto message = daemon->Receive();
      if (!message.ok()) break;
      for (const v1::JobEvent& event : message->events()) steps.push_back(event.step().step());
    }
    return steps;
  }
  std::vector<FlightStep> Untold() {
    const auto reader = FlightReader::Open(folder_.string());
    return reader.ok() ? reader->UntoldSteps().value_or(std::vector<FlightStep>())
                       : std::vector<FlightStep>();
  }
  std::vector<int64_t> UntoldSteps() {
    std::vector<int64_t> numbers;
    const std::vector<FlightStep> steps = Untold();
    for (const FlightStep& step : steps) numbers.push_back(step.step);
    return numbers;
  }

  fs::path folder_;
  FakeClock clock_;
  v1::RankConfig config_;
  std::unique_ptr<FlightWriter> flight_;
  std::unique_ptr<LinkServer> link_;
  std::unique_ptr<Reporter> reporter_;
};

TEST_F(ReporterTest, StepsThatFollowAMessageAreToldTogether) {
  Start(0);
  const auto daemon = Dial();
  EXPECT_TRUE(daemon->Receive()->has_report());
  for (int64_t step = 1; step <= 4; ++step) Step(step);
  const auto message = daemon->Receive();
  ASSERT_EQ(message->events_size(), 4);
  EXPECT_EQ(message->events(0).job(), "books-1");
  EXPECT_EQ(message->events(3).step().step(), 4);
}

TEST_F(ReporterTest, AnEvaluationIsToldAtOnceAfterTheStepsBeforeIt) {
  Start(0);
  const auto daemon = Dial();
  EXPECT_TRUE(daemon->Receive()->has_report());
  Step(4);
  v1::EvalEvent eval;
  eval.set_step(4);
  reporter_->Eval(eval);
  const auto message = daemon->Receive();
  ASSERT_EQ(message->events_size(), 2);
  EXPECT_EQ(message->events(0).step().step(), 4);
  EXPECT_EQ(message->events(1).eval().step(), 4);
  EXPECT_EQ(message->report().progress().eval_step(), 4);
}

// They wait for the next message, the warning does not.
TEST_F(ReporterTest, AWarningComesBehindTheStepsBeforeIt) {
  Start(0, /*news_wait=*/absl::Hours(1));
  const auto daemon = Dial();
  EXPECT_TRUE(daemon->Receive()->has_report());
  Step(4);
  clock_.AdvanceMillis(70);
  Step(5);
  reporter_->Warn("the driver counts more than was planned");
  const auto message = daemon->Receive();
  ASSERT_EQ(message->events_size(), 3);
  EXPECT_EQ(message->events(0).step().step(), 4);
  EXPECT_EQ(message->events(1).step().step(), 5);
  EXPECT_EQ(message->events(1).unix_ms() - message->events(0).unix_ms(), 70);
  EXPECT_TRUE(message->events(2).has_warning());
}

// The recorder keeps only so many.
TEST_F(ReporterTest, ManyStepsDoNotWait) {
  Start(0, /*news_wait=*/absl::Hours(1));
  const int64_t steps = static_cast<int64_t>(kNewsEventsMax);
  const auto daemon = Dial();
  EXPECT_TRUE(daemon->Receive()->has_report());
  for (int64_t step = 1; step < steps; ++step) Step(step);
  EXPECT_EQ(UntoldSteps().size(), kNewsEventsMax - 1);
  Step(steps);
  EXPECT_EQ(NextSteps(daemon.get(), kNewsEventsMax).back(), steps);
  link_->Flush(absl::Seconds(10));
  EXPECT_EQ(UntoldSteps().size(), 0);
}

TEST_F(ReporterTest, ProgressAndMetricsComeTogetherAtMostOnceAnInterval) {
  Start(1);
  const auto daemon = Dial();
  EXPECT_TRUE(daemon->Receive()->has_report());
  Step(1);
  clock_.AdvanceMillis(kMetricsIntervalNs / 1'000'000);
  Step(2);
  const auto message = daemon->Receive();
  EXPECT_EQ(message->report().progress().step(), 2);
  EXPECT_EQ(message->metrics().steps(), 2);
  EXPECT_EQ(message->events_size(), 0) << "events are told by rank 0";
}

// Other events are of the job, and rank 0's to tell.
TEST_F(ReporterTest, AWarningOfAnyRankIsToldWithItsName) {
  Start(1);
  const auto daemon = Dial();
  EXPECT_TRUE(daemon->Receive()->has_report());
  reporter_->Warn("the driver counts more than was planned");
  const auto message = daemon->Receive();
  ASSERT_EQ(message->events_size(), 1);
  EXPECT_EQ(message->events(0).warning().rank(), 1u);
  EXPECT_EQ(message->events(0).warning().text(), "the driver counts more than was planned");
}

TEST_F(ReporterTest, StepsAreKeptUntilADaemonHasThem) {
  Start(0);
  Step(1);
  Step(2, /*log=*/false);
  Step(3);
  EXPECT_EQ(UntoldSteps(), (std::vector<int64_t>{1, 3}));
  v1::JobEvent kept;
  ASSERT_TRUE(kept.ParseFromString(Untold().back().message));
  EXPECT_DOUBLE_EQ(kept.step().loss(), 1.0 / 3);
  const auto daemon = Dial();
  EXPECT_EQ(NextSteps(daemon.get(), 2), (std::vector<int64_t>{1, 3}));
  link_->Flush(absl::Seconds(10));
  EXPECT_EQ(UntoldSteps(), std::vector<int64_t>{});
}

// No field of a step is left out because of its length.
TEST_F(ReporterTest, TheLongestStepHasRoomInTheRecorder) {
  Start(0);
  v1::StepEvent event;
  event.set_step(INT64_MAX);
  event.set_loss(0.1);
  event.set_grad_norm(0.1);
  event.set_tokens_per_second(0.1);
  event.set_step_seconds(0.1);
  event.set_learning_rate(0.1);
  event.set_tokens(-1);
  event.set_skipped(true);
  reporter_->Step(event, {}, /*log=*/true);
  EXPECT_EQ(UntoldSteps(), std::vector<int64_t>{INT64_MAX});
}

TEST_F(ReporterTest, TheEndTakesAlongWhatWaits) {
  Start(0);
  const auto daemon = Dial();
  for (int64_t step = 1; step <= 5; ++step) Step(step);
  reporter_->End(absl::OkStatus(), /*stopped_early=*/false, 0);
  EXPECT_EQ(NextSteps(daemon.get(), 5), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(UntoldSteps(), std::vector<int64_t>{});
}

// A rank that is killed on request may be in the middle of its steps.
TEST_F(ReporterTest, NothingIsToldAfterTheEnd) {
  Start(0);
  const auto daemon = Dial();
  for (int64_t step = 1; step <= 4; ++step) Step(step);
  reporter_->End(absl::OkStatus(), /*stopped_early=*/true, 0);
  for (int64_t step = 5; step <= 1000; ++step) Step(step);
  const absl::Time start = absl::Now();
  link_->Flush(absl::Seconds(10));
  EXPECT_LT(absl::Now() - start, kNewsWait / 2) << "nothing is waited for";
  reporter_->SetLink(nullptr);
  link_.reset();
  EXPECT_EQ(NextSteps(daemon.get(), 1000), (std::vector<int64_t>{1, 2, 3, 4}));
}

// Steps that are added while another thread ends the rank come whole and in order, up to some step,
// and none after the message that says that it has ended.
TEST_F(ReporterTest, TheEndMayComeWhileStepsAreAdded) {
  Start(0);
  const auto daemon = Dial();
  std::atomic<int64_t> added = 0;
  std::thread trains([this, &added] {
    for (int64_t step = 1; step <= 900; ++step) {
      Step(step);
      added = step;
    }
  });
  std::vector<int64_t> steps;
  bool ended = false;
  std::thread listens([&] {
    while (true) {
      const auto message = daemon->Receive();
      if (!message.ok()) return;
      for (const v1::JobEvent& event : message->events()) {
        EXPECT_FALSE(ended) << "step " << event.step().step();
        steps.push_back(event.step().step());
      }
      ended = ended || message->report().state() == v1::RANK_SUCCEEDED;
    }
  });
  while (added < 200) std::this_thread::yield();
  reporter_->End(absl::OkStatus(), /*stopped_early=*/true, 0);
  trains.join();
  reporter_->SetLink(nullptr);
  link_.reset();
  listens.join();
  EXPECT_TRUE(ended);
  ASSERT_GE(steps.size(), 200u);
  for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], static_cast<int64_t>(i) + 1);
}

// Each message of steps says how far the job is.
TEST_F(ReporterTest, ProgressComesWithTheStepsAlsoWithoutMetrics) {
  Start(0, /*news_wait=*/absl::Hours(1));
  const auto daemon = Dial();
  EXPECT_TRUE(daemon->Receive()->has_report());
  Step(4);
  link_->Flush(absl::Seconds(10));
  const auto message = daemon->Receive();
  EXPECT_EQ(message->report().progress().step(), 4);
  EXPECT_FALSE(message->has_metrics());
}

}  // namespace
}  // namespace terrace
