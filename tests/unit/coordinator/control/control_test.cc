// SPDX-License-Identifier: Apache-2.0
#include "coordinator/control/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "coordinator/control/submit.h"
#include "coordinator/planning/work.h"
#include "coordinator/store/memory_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_planner.h"
#include "tests/support/fake_worker.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr char kYaml[] = R"(
name: tiny
model: {config: {model_type: gpt2, vocab_size: 256, n_positions: 64, n_embd: 32, n_layer: 1, n_head: 4}}
data: {train: [text.txt], tokenizer: bytes, sequence_length: 32}
train: {steps: 10, global_batch: 4}
checkpoint: {directory: checkpoints}
)";

// The planner of these tests: fits into 2 MiB, and compiles nothing unless it is to be listed.
absl::StatusOr<v1::PlannerAnswer> Answer(const v1::PlannerRequest& request) {
  v1::PlannerAnswer answer;
  if (!request.has_plan() || request.plan().has_listing()) {
    answer = AnswerOf(request);
    if (answer.code() == 0) return answer;
    return absl::Status(static_cast<absl::StatusCode>(answer.code()), answer.message());
  }
  const Budget budget = FromMessage(request.plan().budget());
  if (budget.device_memory_bytes > 0 && budget.device_memory_bytes < (2 << 20)) {
    return absl::ResourceExhaustedError("needs 2 MiB");
  }
  answer.mutable_plan()->set_job(request.plan().spec().name());
  answer.mutable_plan()->mutable_layout()->set_ranks(budget.ranks);
  answer.mutable_plan()->mutable_layout()->set_nodes(budget.nodes);
  answer.add_programs()->set_sha256("a program");
  return answer;
}

class ConnectedWorker final : public WorkerConnection {
 public:
  explicit ConnectedWorker(FakeWorker& worker) : worker_(worker) {}
  void Send(const v1::CoordinatorMessage& message) override { worker_.Handle(message); }

 private:
  FakeWorker& worker_;
};

class ControlTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(control_.Start().ok()); }
  void TearDown() override { control_.Stop(); }

  absl::StatusOr<v1::Job> Submit(const std::string& yaml, bool dry_run = false) {
    v1::SubmitRequest request;
    request.set_yaml(yaml);
    request.set_base_directory("/base");
    request.set_dry_run(dry_run);
    absl::StatusOr<v1::Job> result;
    absl::Notification done;
    terrace::Submit(control_, request, {}, nullptr, [&](absl::StatusOr<v1::Job> job) {
      result = std::move(job);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }
  void OnLoop(const std::function<void()>& work) { ASSERT_TRUE(control_.loop().Call(work)); }
  void AddWorker() {
    OnLoop([&] {
      const uint64_t session = control_.NewSession();
      ASSERT_TRUE(control_.reconciler().WorkerRegistered(worker_.node(), session).ok());
      control_.AttachWorker(worker_.name(), session, &connection_);
      ASSERT_TRUE(
          control_.reconciler().WorkerSaid(worker_.name(), session, worker_.Heartbeat()).ok());
    });
  }

  MemoryStore store_;
  SystemClock clock_;
  FakeWorker worker_{"w0", 1};
  ConnectedWorker connection_{worker_};
  FakePlanner planner_{&Answer};
  Control control_{{}, store_, clock_, planner_};
};

TEST_F(ControlTest, ASubmittedJobIsStoredBeforeTheAnswer) {
  const auto job = Submit(kYaml);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->id(), "tiny-1");
  EXPECT_EQ(job->reason(), v1::REASON_NO_MATCHING_WORKER);
  EXPECT_TRUE(store_.GetJob("tiny-1").ok());
}

TEST_F(ControlTest, ADryRunPlansAndStoresNothing) {
  const auto job = Submit(kYaml, /*dry_run=*/true);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->plan().layout().ranks(), 1);
  EXPECT_TRUE(store_.ListJobs()->empty());
}

TEST_F(ControlTest, AnInvalidSpecIsNotStored) {
  EXPECT_EQ(Submit("name: [").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(store_.ListJobs()->empty());
}

TEST_F(ControlTest, AJobThatCannotFitIsRefusedEvenWithoutWorkers) {
  const auto job = Submit(std::string(kYaml) + "resources: {device_memory: 1MiB}\n");
  EXPECT_EQ(job.status().code(), absl::StatusCode::kResourceExhausted) << job.status();
  EXPECT_TRUE(store_.ListJobs()->empty());
}

TEST_F(ControlTest, AWaitingJobIsPlannedAndStarted) {
  ASSERT_TRUE(Submit(kYaml).ok());
  AddWorker();
  v1::JobState state = v1::QUEUED;
  for (int i = 0; i < 1000 && state != v1::STARTING; ++i) {
    OnLoop([&] { state = control_.reconciler().Get("tiny-1")->state(); });
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(state, v1::STARTING);
  OnLoop([&] { EXPECT_EQ(worker_.CountStarts(), 1); });
}

TEST_F(ControlTest, WatchersBeyondTheLimitAreRefused) {
  OnLoop([&] {
    for (size_t i = 0; i < kWatchersMax; ++i) {
      ASSERT_TRUE(control_.AddWatcher("tiny-1", [] {}).ok());
    }
    EXPECT_EQ(control_.AddWatcher("tiny-1", [] {}).status().code(),
              absl::StatusCode::kResourceExhausted);
  });
}

TEST_F(ControlTest, AWatcherIsToldOfNewEventsOfItsJobOnly) {
  int told = 0;
  OnLoop([&] { ASSERT_TRUE(control_.AddWatcher("tiny-1", [&told] { ++told; }).ok()); });
  ASSERT_TRUE(Submit(kYaml).ok());
  OnLoop([] {});  // the notification is posted
  OnLoop([&] { EXPECT_GT(told, 0); });
  const int before = told;
  std::string other = kYaml;
  other.replace(other.find("directory: checkpoints"), 22, "directory: elsewhere");
  ASSERT_TRUE(Submit(other).ok());
  OnLoop([] {});
  OnLoop([&] { EXPECT_EQ(told, before); });
}

TEST_F(ControlTest, LogsOfAJobThatNeverRanOrAWorkerThatIsAwayAreRefused) {
  ASSERT_TRUE(Submit(kYaml).ok());
  v1::LogsRequest request;
  request.set_id("tiny-1");
  OnLoop([&] {
    EXPECT_THAT(std::string(control_.ReadLog(request, [](const auto&) {}).status().message()),
                HasSubstr("it has not run yet"));
    request.set_id("nobody-7");
    EXPECT_EQ(control_.ReadLog(request, [](const auto&) {}).status().code(),
              absl::StatusCode::kNotFound);
  });
}

TEST_F(ControlTest, ExplainListsTheProgramsOfAYaml) {
  v1::ExplainRequest request;
  request.set_yaml(kYaml);
  absl::Notification done;
  Explain(control_, request, nullptr, [&](absl::StatusOr<v1::ExplainResponse> response) {
    EXPECT_TRUE(response.ok()) << response.status();
    EXPECT_THAT(response.value_or(v1::ExplainResponse()).text(), HasSubstr("program tiny"));
    done.Notify();
  });
  done.WaitForNotification();
}

// A worker is lost for its own silence, not for what this process did not hear.
class ControlPauseTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(control_.Start().ok());
    ASSERT_TRUE(control_.loop().Call([this] {
      const uint64_t session = control_.NewSession();
      ASSERT_TRUE(control_.reconciler().WorkerRegistered(worker_.node(), session).ok());
      ASSERT_TRUE(control_.reconciler().WorkerSaid("w", session, worker_.Heartbeat()).ok());
    }));
  }
  void TearDown() override { control_.Stop(); }

  // The worker's state after a pass that comes so long after the one before.
  std::string StateAfter(int64_t ms) {
    std::string state;
    EXPECT_TRUE(control_.loop().Call([this, ms] { clock_.AdvanceMillis(ms); }));
    EXPECT_TRUE(control_.loop().Call(
        [this, &state] { state = control_.reconciler().Nodes().front().state(); }));
    return state;
  }

  FakeClock clock_;  // read and moved on the loop only
  MemoryStore store_;
  FakeWorker worker_{"w", 1};
  FakePlanner planner_{&Answer};
  Control control_{{}, store_, clock_, planner_};
};

TEST_F(ControlPauseTest, AWorkerIsNotLostBecauseTheCoordinatorStoodStill) {
  EXPECT_EQ(StateAfter(60'000), "ready");
  EXPECT_EQ(StateAfter(1500), "ready");
  EXPECT_EQ(StateAfter(1500), "lost") << "silent for more than 3 s of those that were listened to";
}

TEST_F(ControlPauseTest, AWorkerIsLostAlsoWhereEachPassComesLate) {
  EXPECT_EQ(StateAfter(5000), "ready");
  EXPECT_EQ(StateAfter(5000), "ready");
  EXPECT_EQ(StateAfter(5000), "lost");
}

}  // namespace
}  // namespace terrace
