// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "proto/program/program_hash.h"
#include "tests/unit/worker/daemon/supervisor_fixture.h"
#include "worker/daemon/supervisor.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// Every step of a start, with patience that tests have.
class SupervisorStartTest : public SupervisorTest {
 protected:
  SupervisorStartTest() {
    starting_ = {.ask_again_ms = 100,
                 .program_ms = 600,
                 .retry_ms = 20,
                 .retry_for_ms = 600,
                 .link_ms = 600,
                 .prepare_ms = 600};
  }

  v1::RankConfig ConfigOf(const std::string& program, uint32_t rank = 0) {
    v1::RankConfig config = Config("", rank);
    config.set_program_sha256(Sha256Hex(program));
    return config;
  }
  // As it comes from the coordinator.
  void Send(const std::string& program) {
    v1::ProgramChunk chunk;
    chunk.set_data(program);
    chunk.set_total_bytes(static_cast<int64_t>(program.size()));
    chunk.set_sha256(Sha256Hex(program));
    loop_->Call([&] {
      const absl::StatusOr<bool> complete = programs_->Add(chunk);
      if (complete.ok()) return supervisor_->ProgramArrived(chunk.sha256());
      supervisor_->ProgramFailed(chunk.sha256(), complete.status());
    });
  }
  int Asked() {
    int asked = 0;
    loop_->Call([&] {
      for (const v1::WorkerMessage& message : sent_) asked += message.has_need_program();
    });
    return asked;
  }
  // A file where a folder of the state directory should be: nothing can be written there.
  void Block(const std::string& folder) { std::ofstream(state_ + "/" + folder) << "occupied"; }
  void Release(const std::string& folder) { std::filesystem::remove(state_ + "/" + folder); }
};

TEST_F(SupervisorStartTest, AProgramThatCannotBeKeptIsToldAndAskedForAgain) {
  Block("programs");
  Start(ConfigOf("a program"));
  Send("a program");
  EXPECT_EQ(Report().state(), v1::RANK_STARTED);
  EXPECT_THAT(Report().message(), HasSubstr("cannot be kept"));
  EXPECT_THAT(Report().message(), HasSubstr(state_ + "/programs"));
  EXPECT_THAT(Report().message(), HasSubstr("tried again for 0.6 s"));
  WaitUntil([&] {
    int asked = 0;
    for (const v1::WorkerMessage& message : sent_) asked += message.has_need_program();
    return asked > 1;
  });
  Release("programs");
  Send("a program");
  WaitForState(v1::RANK_READY);
  EXPECT_EQ(Report().message(), "");
}

TEST_F(SupervisorStartTest, AProgramThatCannotBeKeptForLongFailsTheRankWithTheReason) {
  Block("programs");
  Start(ConfigOf("a program"));
  WaitUntil([&] {
    v1::ProgramChunk chunk;
    supervisor_->ProgramFailed(Sha256Hex("a program"), absl::ResourceExhaustedError("disk full"));
    return supervisor_->Reports().ranks(0).state() == v1::RANK_FAILED;
  });
  EXPECT_EQ(Report().reason(), v1::REASON_RANK_DIED) << "another worker may have room";
  EXPECT_THAT(Report().message(), HasSubstr("disk full"));
}

TEST_F(SupervisorStartTest, AProgramThatDoesNotComeIsAskedForAgainAndFailsTheRankInTheEnd) {
  Start(ConfigOf("a program"));
  WaitForState(v1::RANK_FAILED);
  EXPECT_THAT(Report().message(), HasSubstr("has not sent its program within 0.6 s"));
  EXPECT_GE(Asked(), 3);
}

TEST_F(SupervisorStartTest, AProgramThatComesInPartsIsWaitedFor) {
  Start(ConfigOf("a program"));
  for (int i = 0; i < 10; ++i) {
    loop_->Call([&] { supervisor_->ProgramComes(Sha256Hex("a program")); });
    absl::SleepFor(absl::Milliseconds(80));
  }
  EXPECT_EQ(Report().state(), v1::RANK_STARTED);
  EXPECT_EQ(Asked(), 1);
  Send("a program");
  WaitForState(v1::RANK_READY);
}

TEST_F(SupervisorStartTest, RanksOfOneProgramAskForItOnce) {
  Start(ConfigOf("a program", 0));
  Start(ConfigOf("a program", 1));
  EXPECT_EQ(Asked(), 1);
  Send("a program");
  WaitForState(v1::RANK_READY, 0);
  WaitForState(v1::RANK_READY, 1);
}

TEST_F(SupervisorStartTest, ARankAfterOneThatWasForgottenAsksForItsProgramAtOnce) {
  starting_.ask_again_ms = 60'000;
  StopDaemon();
  StartDaemon();
  Start(ConfigOf("a program"));
  EXPECT_EQ(Asked(), 1);
  v1::StopRanks stop;
  stop.set_job(ConfigOf("").job());
  stop.set_epoch(ConfigOf("").epoch());
  loop_->Call([&] { supervisor_->Stop(stop); });
  v1::RankConfig again = ConfigOf("a program");
  again.set_epoch(again.epoch() + 1);
  Start(again);
  EXPECT_EQ(Asked(), 2);
  stop.set_epoch(again.epoch());
  loop_->Call([&] { supervisor_->Stop(stop); });
}

TEST_F(SupervisorStartTest, ARankThatCannotBeStartedIsTriedAgain) {
  Block("runs");
  Start(Config(""));
  EXPECT_EQ(Report().state(), v1::RANK_STARTED);
  EXPECT_THAT(Report().message(), HasSubstr("cannot be started"));
  EXPECT_THAT(Report().message(), HasSubstr(state_ + "/runs"));
  Release("runs");
  WaitForState(v1::RANK_READY);
}

TEST_F(SupervisorStartTest, AProcessThatDoesNotAnswerIsEndedAndTold) {
  Start(Config("mute=1"));
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(Report().reason(), v1::REASON_RANK_DIED);
  EXPECT_THAT(Report().message(), HasSubstr("did not answer within 0.6"));
}

TEST_F(SupervisorStartTest, ARankThatWaitsForGoIsNotOverdue) {
  Start(Config("steps=2"));
  WaitForState(v1::RANK_READY);
  absl::SleepFor(absl::Milliseconds(800));
  EXPECT_EQ(Report().state(), v1::RANK_READY);
}

}  // namespace
}  // namespace terrace
