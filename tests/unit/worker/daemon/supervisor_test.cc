// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "proto/program/program_hash.h"
#include "tests/unit/worker/daemon/supervisor_fixture.h"
#include "worker/daemon/run_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST_F(SupervisorTest, ARankWaitsForGoRunsAndIsReportedUntilForgotten) {
  Start(Config("steps=3"));
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_SUCCEEDED);
  EXPECT_EQ(Report().progress().step(), 3);
  EXPECT_FALSE(Report().stopped_early());
  int events = 0;
  loop_->Call([&] {
    for (const v1::WorkerMessage& message : sent_) events += message.events_size();
  });
  EXPECT_EQ(events, 3) << "all events come before the end is reported";
  Stop(/*checkpoint=*/false);
  EXPECT_EQ(Reports().ranks_size(), 0);
}

TEST_F(SupervisorTest, StartingTheSameRankTwiceIsStartingItOnce) {
  Start(Config(""));
  WaitForState(v1::RANK_READY);
  const int32_t pid = Report().pid();
  Start(Config(""));
  EXPECT_EQ(Report().pid(), pid);
  EXPECT_EQ(Reports().ranks_size(), 1);
}

TEST_F(SupervisorTest, AnOlderEpochIsRefused) {
  Start(Config("", 0, 5));
  Start(Config("", 0, 4));
  ASSERT_EQ(Reports().ranks_size(), 1);
  EXPECT_EQ(Report().epoch(), 5);
}

TEST_F(SupervisorTest, AKilledRankIsNoticedInLessThanHalfASecond) {
  Start(Config(""));
  WaitForState(v1::RANK_READY);
  const absl::Time killed = absl::Now();
  kill(Report().pid(), SIGKILL);
  WaitForState(v1::RANK_FAILED);
  EXPECT_LT(absl::Now() - killed, absl::Milliseconds(500));
  EXPECT_EQ(Report().reason(), v1::REASON_RANK_DIED);
  EXPECT_THAT(Report().message(), HasSubstr("signal 9 (SIGKILL)"));
  EXPECT_THAT(Report().message(), HasSubstr("starts")) << "the last line of its log";
}

TEST_F(SupervisorTest, AFailureKeepsTheReasonThatTheRankGave) {
  Start(Config(absl::StrCat("reason=", int{v1::REASON_DATA_ERROR})));
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(Report().reason(), v1::REASON_DATA_ERROR);
  EXPECT_EQ(Report().message(), "told to fail");
}

TEST_F(SupervisorTest, AProgramNameThatIsNoHashFailsTheRankAndNotTheDaemon) {
  v1::RankConfig config = Config("");
  config.set_program_sha256("no hash");
  Start(config);
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(Report().reason(), v1::REASON_INTERNAL);
}

TEST_F(SupervisorTest, StopWithACheckpointLetsTheRankEndByItself) {
  Start(Config("steps=100000 step_ms=5"));
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_RUNNING);
  Stop(/*checkpoint=*/true);
  WaitForState(v1::RANK_SUCCEEDED);
  EXPECT_TRUE(Report().stopped_early());
}

TEST_F(SupervisorTest, StopKillsAndForgetsRanksOfThisAndOlderEpochs) {
  Start(Config("mute=1", 0, 1));
  Start(Config("steps=100000 step_ms=5", 1, 2));
  Stop(/*checkpoint=*/false, 2);
  WaitUntil([&] { return supervisor_->Reports().ranks_size() == 0; });
}

TEST_F(SupervisorTest, ARankWaitsForItsProgramAndStartsWhenItArrives) {
  v1::RankConfig config = Config("");
  config.set_program_sha256(Sha256Hex("late program"));
  Start(config);
  EXPECT_EQ(Report().state(), v1::RANK_STARTED);
  ASSERT_FALSE(sent_.empty());
  EXPECT_EQ(sent_.back().need_program().sha256(), config.program_sha256());
  v1::ProgramChunk chunk;
  chunk.set_data("late program");
  chunk.set_total_bytes(12);
  chunk.set_sha256(config.program_sha256());
  loop_->Call([&] {
    ASSERT_TRUE(*programs_->Add(chunk));
    supervisor_->ProgramArrived(chunk.sha256());
  });
  WaitForState(v1::RANK_READY);
}

TEST_F(SupervisorTest, StepsThatAKilledRankHadNotToldAreTakenFromItsRecorder) {
  Start(Config("steps=20 finished=1 crash_at=9 untold_after=4"));
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(StepsSent(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(sent_.back().events().rbegin()->job(), "a-1");
  EXPECT_EQ(sent_.back().events().rbegin()->epoch(), 1);
  EXPECT_DOUBLE_EQ(sent_.back().events().rbegin()->step().loss(), 1.0 / 9);
  EXPECT_EQ(Report().progress().step(), 9);
  StopDaemon();
  StartDaemon();
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(StepsSent().size(), 9u) << "a new daemon does not tell them again";
}

TEST_F(SupervisorTest, ANewDaemonTellsWhatARankHadNotToldTheOldOne) {
  Start(Config("steps=5 step_ms=20 finished=1 untold_after=1"));
  WaitForState(v1::RANK_READY);
  const int32_t pid = Report().pid();
  Go();
  WaitForState(v1::RANK_RUNNING);
  StopDaemon();
  absl::SleepFor(absl::Milliseconds(300));
  waitpid(pid, nullptr, 0);  // this process is still its parent
  StartDaemon();
  EXPECT_EQ(Report().state(), v1::RANK_SUCCEEDED);
  const std::vector<int64_t> steps = StepsSent();
  ASSERT_GE(steps.size(), 4u);
  EXPECT_EQ(std::vector<int64_t>(steps.end() - 4, steps.end()), (std::vector<int64_t>{2, 3, 4, 5}));
}

TEST_F(SupervisorTest, ANewDaemonFindsLiveRanksAndGoesOnWithThem) {
  Start(Config("steps=100000 step_ms=5"));
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_RUNNING);
  const int32_t pid = Report().pid();
  StopDaemon();
  EXPECT_EQ(kill(pid, 0), 0) << "the rank lives on";
  StartDaemon();
  EXPECT_EQ(Report().pid(), pid);
  WaitForState(v1::RANK_RUNNING);
  const int64_t step = Report().progress().step();
  WaitUntil([&] { return supervisor_->Reports().ranks(0).progress().step() > step; });
  Stop(/*checkpoint=*/true);
  WaitForState(v1::RANK_SUCCEEDED);
  EXPECT_TRUE(Report().stopped_early());
}

TEST_F(SupervisorTest, ANewDaemonLearnsHowARankEndedWhileNoneWasThere) {
  Start(Config("steps=3 step_ms=20"));
  Start(Config("steps=3 step_ms=20 crash_at=2", 1));
  WaitForState(v1::RANK_READY, 0);
  WaitForState(v1::RANK_READY, 1);
  const int32_t pids[] = {Report(0).pid(), Report(1).pid()};
  Go();
  WaitForState(v1::RANK_RUNNING, 0);
  WaitForState(v1::RANK_RUNNING, 1);
  StopDaemon();
  absl::SleepFor(absl::Milliseconds(300));
  for (const int32_t pid : pids) waitpid(pid, nullptr, 0);  // this process is still their parent
  StartDaemon();
  EXPECT_EQ(Report(0).state(), v1::RANK_SUCCEEDED) << "exit.pb says so";
  EXPECT_EQ(Report(1).state(), v1::RANK_FAILED);
  EXPECT_THAT(Report(1).message(), HasSubstr("while no daemon watched it"));
}

TEST_F(SupervisorTest, KeysAndOpenWaitsAreSentAgainAfterAReconnect) {
  Start(Config("rendezvous=1"));
  WaitUntil([&] { return !sent_.empty() && sent_.back().has_kv_wait(); });
  loop_->Call([&] {
    sent_.clear();
    supervisor_->Resend();
  });
  ASSERT_EQ(sent_.size(), 2);
  EXPECT_EQ(sent_[0].kv_set().key(), "rank0");
  EXPECT_EQ(sent_[1].kv_wait().keys_size(), 2);
  v1::KvValues values;
  values.set_job("a-1");
  values.set_epoch(1);
  values.set_request(1);
  values.add_values("here");
  loop_->Call([&] { supervisor_->Answer(values); });
  WaitForState(v1::RANK_READY);
}

TEST_F(SupervisorTest, MetricsAreThoseOfLiveRanksOnly) {
  Start(Config("steps=100000 step_ms=5"));
  WaitForState(v1::RANK_READY);
  Go();
  WaitUntil([&] {
    const auto all = supervisor_->LiveMetrics();
    return all.size() == 1 && all[0].metrics.loss() == 2.5;
  });
  kill(Report().pid(), SIGKILL);
  WaitForState(v1::RANK_FAILED);
  loop_->Call([&] { EXPECT_TRUE(supervisor_->LiveMetrics().empty()); });
}

TEST_F(SupervisorTest, AJobNamedLikeAPathIsRefused) {
  v1::RankConfig config = Config("");
  config.set_job("../../etc");
  Start(config);
  EXPECT_EQ(Reports().ranks_size(), 0);
}

}  // namespace
}  // namespace terrace
