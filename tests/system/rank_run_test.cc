// terrace-rank as a process: from its configuration to its end, killed, stopped and slowed. What
// is measured is measured from outside.
//
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/program/program_hash.h"
#include "tests/system/rank_job.h"

namespace terrace {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(RankRunTest, TrainsEvaluatesWritesItsCheckpointAndItsTrace) {
  RankJob job("end", {.steps = 60});
  ASSERT_EQ(job.Run(), 0) << job.log(0);
  const v1::RankReport outcome = job.Outcome();
  EXPECT_EQ(outcome.state(), v1::RANK_SUCCEEDED);
  EXPECT_FALSE(outcome.stopped_early());
  EXPECT_EQ(outcome.progress().step(), 60);
  EXPECT_EQ(outcome.progress().eval_step(), 60);
  EXPECT_EQ(outcome.progress().checkpoint(), job.checkpoint(60));
  EXPECT_LT(outcome.progress().loss(),
            4.0);  // log(64) = 4.16: it has learned which half of the vocabulary occurs
  const auto trace = nlohmann::json::parse(ReadAll(job.run_directory(0) / "trace.json"));
  EXPECT_GT(trace["traceEvents"].size(), 2u * job.program().sequences(0).instructions_size());
}

TEST(RankRunTest, AJobThatSavesNeverLeavesNoCheckpoint) {
  RankJob job("save_never", {.steps = 20, .checkpoint_every = 0});
  job.spec().mutable_checkpoint()->set_save("never");
  ASSERT_EQ(job.Run(), 0) << job.log(0);
  EXPECT_EQ(job.Outcome().progress().step(), 20);
  EXPECT_EQ(job.Outcome().progress().checkpoint(), "");
  EXPECT_FALSE(fs::exists(job.checkpoint(20)));
}

TEST(RankRunTest, KilledAtAnyInstantItResumesBitwise) {
  RankJob whole("whole", {.steps = 300}), killed("killed", {.steps = 300});
  ASSERT_EQ(whole.Run(), 0) << whole.log(0);
  for (const int64_t after : {20, 90, 150}) {
    const pid_t pid = killed.Start();
    ASSERT_TRUE(WaitUntil([&] {
      return fs::exists(killed.checkpoint(after)) ||
             fs::exists(killed.run_directory(0) / "exit.pb");
    })) << killed.log(0);
    kill(pid, SIGKILL);
    RankJob::WaitForExit(pid);
  }
  ASSERT_EQ(killed.Run(), 0) << killed.log(0);
  EXPECT_THAT(killed.log(0), HasSubstr("resumes after step"));
  ExpectSameState(whole.checkpoint(300), killed.checkpoint(300));
}

TEST(RankRunTest, SigtermFinishesTheStepWritesACheckpointAndResumesBitwise) {
  RankJob whole("whole2", {.steps = 400, .checkpoint_every = 0}),
      stopped("stopped", {.steps = 400, .checkpoint_every = 0});
  ASSERT_EQ(whole.Run(), 0);
  const pid_t pid = stopped.Start();
  ASSERT_TRUE(WaitUntil([&] { return stopped.log(0).find("step 20 of") != std::string::npos; }));
  kill(pid, SIGTERM);
  EXPECT_EQ(RankJob::WaitForExit(pid), 0);
  const v1::RankReport outcome = stopped.Outcome();
  EXPECT_EQ(outcome.state(), v1::RANK_SUCCEEDED);
  EXPECT_TRUE(outcome.stopped_early());
  EXPECT_EQ(outcome.progress().checkpoint_step(), outcome.progress().step());
  ASSERT_EQ(stopped.Run(), 0) << stopped.log(0);
  ExpectSameState(whole.checkpoint(400), stopped.checkpoint(400));
}

TEST(RankRunTest, TwoRanksEndTogetherAndALostOneIsNoticedQuickly) {
  RankJob job("two", {.steps = 100'000, .checkpoint_every = 0, .ranks = 2});
  const pid_t first = job.Start(0), second = job.Start(1);
  ASSERT_TRUE(WaitUntil([&] { return job.log(0).find("step 20 of") != std::string::npos; }))
      << job.log(0) << job.log(1);
  kill(second, SIGKILL);
  const auto killed_at = std::chrono::steady_clock::now();
  RankJob::WaitForExit(second);
  EXPECT_EQ(RankJob::WaitForExit(first), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, seconds(5));
  EXPECT_EQ(job.Outcome(0).reason(), v1::REASON_RANK_DIED);
}

// Two stages of two ranks. Rank 0 has no connection of a group to rank 3 but through the others.
TEST(RankRunTest, WhenARankOfAPipelineDiesAllEndWithinSecondsAndNameIt) {
  RankJob job("pipeline", {.steps = 100'000, .checkpoint_every = 0, .ranks = 2, .stages = 2});
  std::vector<pid_t> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank) ranks.push_back(job.Start(rank));
  ASSERT_TRUE(WaitUntil([&] { return job.log(0).find("step 20 of") != std::string::npos; }))
      << job.log(0) << job.log(3);
  kill(ranks[3], SIGKILL);
  const auto killed_at = std::chrono::steady_clock::now();
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(RankJob::WaitForExit(ranks[rank]), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, seconds(5));
  RankJob::WaitForExit(ranks[3]);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job.Outcome(rank).reason(), v1::REASON_RANK_DIED);
    EXPECT_THAT(job.Outcome(rank).message(), HasSubstr("rank 3 is lost"));
  }
}

// Over two ranks each gradient crosses the link once a step.
TEST(RankRunTest, SlowedLinksTakeAsLongAsTheirBytesNeed) {
  constexpr double kBytesPerSecond = 1e6;
  RankJob job(
      "slow",
      {.steps = 4, .checkpoint_every = 0, .ranks = 2, .link_bytes_per_second = kBytesPerSecond});
  const pid_t first = job.Start(0), second = job.Start(1);
  ASSERT_EQ(RankJob::WaitForExit(first), 0) << job.log(0);
  ASSERT_EQ(RankJob::WaitForExit(second), 0) << job.log(1);
  int64_t gradient_bytes = 0;
  for (const v1::StateRange& range : job.program().state())
    if (range.kind() == v1::WEIGHT) gradient_bytes += range.rows() * range.columns() * 4;
  EXPECT_GT(gradient_bytes, 50'000);
  EXPECT_GT(job.Outcome().progress().step_seconds(), gradient_bytes / kBytesPerSecond);
}

TEST(RankRunTest, AProgramOfAnotherStageIsRefused) {
  RankJob job("stage", {.ranks = 1, .stages = 2});
  fs::copy_file(job.folder() / "stage1.pb", job.folder() / "stage0.pb",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(
      RankJob::WaitForExit(job.Start(0, false, Sha256Hex(ReadAll(job.folder() / "stage1.pb")))), 1);
  EXPECT_THAT(job.Outcome().message(), HasSubstr("rank 0 is in stage 0, its program is that of"));
}

TEST(RankRunTest, AStopOfOneRankStopsAllAtTheSameStep) {
  RankJob job("stop_two", {.steps = 100'000, .checkpoint_every = 0, .ranks = 2});
  const pid_t first = job.Start(0), second = job.Start(1);
  ASSERT_TRUE(WaitUntil([&] { return job.log(0).find("step 20 of") != std::string::npos; }))
      << job.log(0) << job.log(1);
  kill(second, SIGTERM);
  EXPECT_EQ(RankJob::WaitForExit(first), 0) << job.log(0);
  EXPECT_EQ(RankJob::WaitForExit(second), 0) << job.log(1);
  EXPECT_EQ(job.Outcome(0).progress().step(), job.Outcome(1).progress().step());
  EXPECT_TRUE(fs::exists(job.checkpoint(job.Outcome(0).progress().step())));
}

}  // namespace
}  // namespace terrace
