// SPDX-License-Identifier: Apache-2.0
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
#include "worker/daemon/supervisor.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST_F(SupervisorTest, AKilledRankLeavesAVerdictOnWhatItHeld) {
  v1::RankConfig config = Config("finished=1 steps=7 crash_at=7");
  config.set_program_sha256(CachedProgram(SmallProgram().SerializeAsString()));
  Start(config);
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_FAILED);
  EXPECT_THAT(Report().message(),
              HasSubstr("signal 9 (SIGKILL), sender unknown while executing instruction 1 second, "
                        "layer 3 of step 7: device 512.0 KiB live of 1.0 MiB"));
  const std::string folder = state_ + "/runs/a-1/1/0";
  const auto page = ReadTextFile(folder + "/memory_verdict.txt", 1 << 20);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, HasSubstr("activation  made by 1 second, layer 3"));
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder + "/flight")))
      << "the shared memory is freed, its content kept";
}

TEST_F(SupervisorTest, ARankWhoseAllocationFailsHasRunOutOfMemory) {
  v1::RankConfig config = Config("finished=1 steps=7 bad_alloc_at=3");
  config.set_program_sha256(CachedProgram(SmallProgram().SerializeAsString()));
  Start(config);
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(Report().reason(), v1::REASON_OUT_OF_MEMORY) << Report().message();
  EXPECT_THAT(Report().message(), HasSubstr("std::bad_alloc"));
  EXPECT_EQ(Report().memory().step(), 3) << "what it held goes with every report";
  EXPECT_EQ(Report().memory().step(), 3);
}

// 1 MiB of arena, 4 MiB allowed outside, 8 MiB in all; then 16 MiB more.
v1::RankConfig Growing(const std::string& sha256, v1::RankConfig config) {
  config.set_program_sha256(sha256);
  config.mutable_spec()->mutable_checkpoint()->set_directory("/checkpoints");
  return config;
}

TEST_F(SupervisorTest, ARankOverItsLimitIsEndedWithACheckpointAndHasRunOutOfMemory) {
  v1::Program program = SmallProgram();
  program.set_external_bytes(4 << 20);
  program.set_device_limit_bytes(8 << 20);
  const std::string sha256 = CachedProgram(program.SerializeAsString());
  const std::string words = "finished=1 steps=1000000 step_ms=1";
  Start(Growing(sha256, Config(words + " grow_mib=16", 0)));
  Start(Growing(sha256, Config(words, 1)));
  for (const uint32_t rank : {0u, 1u}) WaitForState(v1::RANK_READY, rank);
  Go();
  WaitUntil([&] {
    supervisor_->SampleMemory();
    return supervisor_->Reports().ranks(0).state() == v1::RANK_FAILED;
  });
  const v1::RankReport report = Report(0);
  EXPECT_EQ(report.reason(), v1::REASON_OUT_OF_MEMORY);
  EXPECT_THAT(report.message(), HasSubstr("and 8.0 MiB is its limit; ended after a checkpoint"));
  EXPECT_GE(report.memory().external_bytes(), 16 << 20);
  EXPECT_EQ(report.memory().external_allowed_bytes(), 4 << 20);
  EXPECT_EQ(Report(1).state(), v1::RANK_RUNNING) << "its gang would end it";
  StopDaemon();
  StartDaemon();
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(Report(0).reason(), v1::REASON_OUT_OF_MEMORY) << "another daemon knows it too";
}

TEST_F(SupervisorTest, ALiveRankIsReportedWithWhatItHoldsOnceAnInterval) {
  v1::RankConfig config = Config("finished=0 steps=1000000 step_ms=1");
  config.set_program_sha256(CachedProgram(SmallProgram().SerializeAsString()));
  Start(config);
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_RUNNING);
  v1::RankMemory memory;
  WaitUntil([&] {
    supervisor_->SampleMemory();
    const v1::Heartbeat told = supervisor_->Reports();
    if (told.ranks(0).has_memory()) memory = told.ranks(0).memory();
    return memory.step() > 0;
  });
  EXPECT_FALSE(Report().has_memory()) << "told already";
  EXPECT_EQ(memory.sequence(), "train");
  EXPECT_EQ(memory.instruction(), "0 first");
  ASSERT_EQ(memory.tiers_size(), 1);
  EXPECT_EQ(memory.tiers(0).reserved_bytes(), 1 << 20);
  ASSERT_EQ(memory.tiers(0).live_size(), 1) << "the activation is not made yet";
  EXPECT_EQ(memory.tiers(0).live(0).class_(), v1::PARAMETER);
  EXPECT_EQ(memory.allocator().largest_free_block_bytes(), (1 << 20) - (1 << 18));
  loop_->Call([&] { EXPECT_EQ(supervisor_->LiveMetrics()[0].memory.sequence(), "train"); });
}

}  // namespace
}  // namespace terrace
