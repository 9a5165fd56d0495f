// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/progress/process_look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace terrace {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// A /proc with one process, whose threads a test writes.
class ProcessLookTest : public testing::Test {
 protected:
  void SetUp() override {
    proc_ = fs::path(testing::TempDir()) / absl::StrCat("proc-", getpid());
    fs::create_directories(proc_ / "7/task");
    fs::create_directories(proc_ / "7/fd");
    Write("stat", "7 (a (b) c) S 1 7 7 0 -1 0 11 0 123 0 5 6");
    Write("io", "rchar: 1000\nwchar: 200\nsyscr: 9\nread_bytes: 4\n");
  }
  void TearDown() override { fs::remove_all(proc_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(proc_ / "7" / name) << text;
  }
  void AddThread(int id, char state, const std::string& wchan = "0",
                 const std::string& call = "running") {
    const std::string folder = absl::StrCat("task/", id);
    fs::create_directories(proc_ / "7" / folder);
    Write(folder + "/stat", absl::StrCat(id, " (worker ", id, ") ", std::string(1, state), " 1 2"));
    Write(folder + "/wchan", wchan);
    Write(folder + "/syscall", call);
  }
  ProcessReader Reader() const { return ProcessReader(7, proc_.string()); }
  v1::ProcessState State(double faults = 0) const { return Reader().Look(faults).state; }

  fs::path proc_;
};

TEST_F(ProcessLookTest, CountersAreReadWhateverTheProcessIsCalled) {
  const ProcessReader::Counters counters = Reader().Read();
  EXPECT_EQ(counters.major_faults, 123);
  EXPECT_EQ(counters.io_bytes, 1200);
}

TEST_F(ProcessLookTest, AProcessThatIsGoneIsUnknown) {
  EXPECT_EQ(ProcessReader(8, proc_.string()).Look(0).state, v1::PROCESS_STATE_UNSPECIFIED);
  EXPECT_EQ(ProcessReader(8, proc_.string()).Read().io_bytes, 0);
}

TEST_F(ProcessLookTest, WhatOneThreadDoesIsToldBeforeWhatAllDo) {
  AddThread(10, 'S', "futex_wait_queue");
  EXPECT_EQ(State(), v1::PROCESS_WAITING);
  EXPECT_THAT(Reader().Look(0).words, HasSubstr("futex_wait_queue"));
  AddThread(11, 'R');
  EXPECT_EQ(State(), v1::PROCESS_RUNNING);
  AddThread(12, 'D', "nfs_wait_bit_killable");
  EXPECT_EQ(State(), v1::PROCESS_IN_IO);
  EXPECT_THAT(Reader().Look(0).words, HasSubstr("nfs_wait_bit_killable"));
  EXPECT_EQ(State(kPagingFaultsPerSecond), v1::PROCESS_PAGING);
  fs::create_symlink("/dev/nvidia0", proc_ / "7/fd/5");
  AddThread(13, 'R', "0", "16 0x5 0xc0 0x7f");  // ioctl
  EXPECT_EQ(State(), v1::PROCESS_IN_DRIVER);
  AddThread(14, 'T');
  EXPECT_EQ(State(kPagingFaultsPerSecond), v1::PROCESS_STOPPED);
}

TEST_F(ProcessLookTest, AnIoctlOfAnotherFileIsNoDriverCall) {
  fs::create_symlink("socket:[77]", proc_ / "7/fd/5");
  AddThread(10, 'S', "0", "16 0x5 0xc0 0x7f");
  EXPECT_EQ(State(), v1::PROCESS_WAITING);
}

TEST_F(ProcessLookTest, ADebuggerAndAFrozenGroupStopAProcessToo) {
  AddThread(10, 't');
  Write("status", "Name:\ta\nTracerPid:\t4711\n");
  EXPECT_EQ(State(), v1::PROCESS_STOPPED);
  EXPECT_THAT(Reader().Look(0).words, HasSubstr("debugger (process 4711)"));
  AddThread(10, 'S', "do_freezer_trap");
  EXPECT_EQ(State(), v1::PROCESS_STOPPED);
  EXPECT_THAT(Reader().Look(0).words, HasSubstr("control group"));
}

TEST_F(ProcessLookTest, ARealProcessIsSeenStoppedAndGoingOn) {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  const ProcessReader reader(child);
  const auto becomes = [&reader](v1::ProcessState state) {
    for (int i = 0; i < 1000 && reader.Look(0).state != state; ++i)
      absl::SleepFor(absl::Milliseconds(5));
    return reader.Look(0).state;
  };
  EXPECT_EQ(becomes(v1::PROCESS_WAITING), v1::PROCESS_WAITING);
  kill(child, SIGSTOP);
  EXPECT_EQ(becomes(v1::PROCESS_STOPPED), v1::PROCESS_STOPPED);
  EXPECT_THAT(reader.ThreadsText(), HasSubstr(absl::StrCat(child, "  ")));
  kill(child, SIGCONT);
  EXPECT_EQ(becomes(v1::PROCESS_WAITING), v1::PROCESS_WAITING);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace terrace
