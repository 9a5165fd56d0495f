// SPDX-License-Identifier: Apache-2.0
// A writer is killed at random instants, and a disk is full: what was complete stays complete.
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/layout_fixture.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/directory_lock.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

// The same by several ranks, which are threads here: the kill takes all of them.
[[noreturn]] void WriteTogetherForever(const std::string& directory, int64_t first) {
  TestJob job({.name = "tp2_zero2", .tensor = 2, .data_shard = 2, .sharded = true});
  job.Fill(&TestRank::Value);
  for (int64_t step = first;; ++step) {
    for (const absl::Status& status : job.Write(directory, step, 2)) {
      if (!status.ok()) ::_exit(1);
    }
  }
}

// Writes steps first, first + 1, ... until it is killed.
[[noreturn]] void WriteForever(const std::string& directory, int64_t first) {
  StateFixture state;
  state.Add("w", {64, 1024});
  for (int64_t step = first;; ++step) {
    state.Fill(static_cast<uint8_t>(step));
    if (!WriteCheckpoint(directory, {.step = step, .spec = &state.spec()}, state.state(),
                         {.keep = 2})
             .ok()) {
      ::_exit(1);
    }
  }
}

class CrashTest : public ::testing::TestWithParam<void (*)(const std::string&, int64_t)> {};

INSTANTIATE_TEST_SUITE_P(Writers, CrashTest,
                         ::testing::Values(&WriteForever, &WriteTogetherForever),
                         [](const auto& info) {
                           return info.param == &WriteForever ? "OneRank" : "FourRanks";
                         });

TEST_P(CrashTest, AKillAtAnyInstantLeavesTheNewestWhole) {
  TemporaryFolder folder;
  std::mt19937 random(7);
  int64_t newest = 0;
  for (int round = 0; round < 50; ++round) {
    const pid_t child = ::fork();
    if (child == 0) GetParam()(folder.path(), newest + 1);
    ::usleep(1000 + random() % 60000);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed in round " << round;
    const auto info = NewestCheckpoint(folder.path());
    if (absl::IsNotFound(info.status())) {
      ASSERT_EQ(newest, 0) << "round " << round;
      continue;
    }
    ASSERT_TRUE(info.ok()) << info.status();
    ASSERT_GE(info->step, newest) << "round " << round;
    newest = info->step;
    const std::vector<CheckpointInfo> list = ListCheckpoints(folder.path()).value();
    for (const CheckpointInfo& item : list) {
      ASSERT_TRUE(item.complete) << item.problem << " in round " << round;
      ASSERT_TRUE(VerifyCheckpoint(item.path).ok()) << item.path << " in round " << round;
    }
  }
  EXPECT_GT(newest, 10) << "the writer got somewhere";
  // The next writer tidies up after all of them.
  StateFixture state;
  state.Add("w", {8});
  state.Fill(1);
  ASSERT_TRUE(
      WriteCheckpoint(folder.path(), {.step = newest + 1}, state.state(), {.keep = 2}).ok());
  EXPECT_EQ(ListCheckpoints(folder.path()).value().size(), 2u);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr(".tmp")));
  }
}

// Runs `body` where files cannot grow beyond 1 MiB: a small tmpfs where we may mount one, else a
// limit of the process.
void OnASmallDisk(const std::string& folder, const std::function<void()>& body) {
  if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=1m") == 0) {
    body();
    ::umount2(folder.c_str(), MNT_DETACH);
    return;
  }
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {1 << 20, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  body();
  ::setrlimit(RLIMIT_FSIZE, &before);
}

TEST(FullDiskTest, TheOldCheckpointStaysAndTheNewOneLeavesNothing) {
  TemporaryFolder folder;
  const std::string directory = folder.path("mount");
  std::filesystem::create_directories(directory);
  OnASmallDisk(directory, [&] {
    StateFixture small, large;
    small.Add("w", {1024});
    large.Add("w", {1024, 1024});
    small.Fill(1);
    large.Fill(1);
    ASSERT_TRUE(WriteCheckpoint(directory, {.step = 1}, small.state(), {}).ok());
    const absl::Status full = WriteCheckpoint(directory, {.step = 2}, large.state(), {}).status();
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
    EXPECT_THAT(std::string(full.message()), HasSubstr("model.safetensors"));
    EXPECT_THAT(std::string(full.message()), HasSubstr("free some space"));
    const CheckpointInfo newest = NewestCheckpoint(directory).value();
    EXPECT_EQ(newest.step, 1);
    EXPECT_TRUE(VerifyCheckpoint(newest.path).ok());
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      names.push_back(entry.path().filename().string());
    }
    EXPECT_THAT(names, ::testing::UnorderedElementsAre(".write.lock", "step-00000001"));
  });
}

TEST(ConcurrentWriterTest, ASecondWriterWaitsForTheFirst) {
  TemporaryFolder folder;
  StateFixture state;
  state.Add("w", {8});
  state.Fill(1);
  UniqueFd lock = LockFile(folder.path(".write.lock"), 0).value();
  EXPECT_EQ(LockFile(folder.path(".write.lock"), 40).status().code(),
            absl::StatusCode::kUnavailable);
  std::atomic<bool> released = false;
  std::jthread first([&] {
    ::usleep(150'000);
    released = true;
    lock.Reset();
  });
  EXPECT_TRUE(WriteCheckpoint(folder.path(), {.step = 1}, state.state(), {}).ok());
  EXPECT_TRUE(released);
}

TEST(ConcurrentWriterTest, TheLockOfTheJobDoesNotStopItsOwnWriter) {
  TemporaryFolder folder;
  StateFixture state;
  state.Add("w", {8});
  state.Fill(1);
  const auto job = DirectoryLock::Take(folder.path(), {"books-7", 1}, {0, 0});
  ASSERT_TRUE(job.ok());
  EXPECT_TRUE(WriteCheckpoint(folder.path(), {.step = 1}, state.state(), {}).ok());
}

}  // namespace
}  // namespace terrace
