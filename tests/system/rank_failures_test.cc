// terrace-rank as a process, starved of its files, its disk and its numbers.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/system/rank_job.h"

namespace terrace {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

void ExpectFailure(RankJob* job, v1::Reason reason, const std::string& part_of_message) {
  EXPECT_EQ(job->Run(), 1);
  const v1::RankReport outcome = job->Outcome();
  EXPECT_EQ(outcome.state(), v1::RANK_FAILED);
  EXPECT_EQ(v1::Reason_Name(outcome.reason()), v1::Reason_Name(reason)) << outcome.message();
  EXPECT_THAT(outcome.message(), HasSubstr(part_of_message));
}

TEST(RankFailuresTest, MissingDataIsADataError) {
  RankJob job("no_data", {});
  fs::remove(job.folder() / "train.bin");
  ExpectFailure(&job, v1::REASON_DATA_ERROR, "train.bin");
}

TEST(RankFailuresTest, AProgramOfAnotherHashIsRefused) {
  RankJob job("hash", {});
  EXPECT_EQ(RankJob::WaitForExit(job.Start(0, false, std::string(64, '0'))), 1);
  EXPECT_THAT(job.Outcome().message(), HasSubstr("SHA-256"));
}

TEST(RankFailuresTest, MissingWeightsAreAWeightsError) {
  RankJob job("no_weights", {});
  job.spec().mutable_model()->set_init(job.folder() / "absent.safetensors");
  ExpectFailure(&job, v1::REASON_WEIGHTS_ERROR, "absent.safetensors");
}

TEST(RankFailuresTest, ALossThatIsNotFiniteFailsTheJobAfterTenSteps) {
  RankJob job("infinite", {.lr = 1e30});
  ExpectFailure(&job, v1::REASON_NON_FINITE_LOSS, "not finite");
}

TEST(RankFailuresTest, AFullDiskFailsTheJobAndKeepsTheLastCheckpoint) {
  RankJob job("full_disk", {.steps = 100, .checkpoint_every = 10});
  const fs::path disk = job.spec().checkpoint().directory();
  fs::create_directories(disk);
  // Room for one checkpoint and a half (three copies of 30 k parameters in f32 each).
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=640k") != 0)
    GTEST_SKIP() << "needs the right to mount a tmpfs";
  ExpectFailure(&job, v1::REASON_CHECKPOINT_ERROR, "No space left");
  EXPECT_TRUE(fs::exists(job.checkpoint(10) / "manifest.json"));
  umount(disk.c_str());
}

}  // namespace
}  // namespace terrace
