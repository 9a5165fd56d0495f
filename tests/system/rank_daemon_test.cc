// terrace-rank as a process, with a daemon that comes and goes.
//
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/system/rank_job.h"
#include "worker/link/link.h"

namespace terrace {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::unique_ptr<LinkConnection> Dial(const RankJob& job) {
  std::unique_ptr<LinkConnection> connection;
  WaitUntil([&] {
    auto dialled = DialLink((job.run_directory(0) / "link.sock").string());
    if (dialled.ok()) connection = *std::move(dialled);
    return connection != nullptr;
  });
  return connection;
}

// The next report in `state`; everything else is dropped.
v1::RankReport AwaitState(LinkConnection* connection, v1::RankState state) {
  while (true) {
    const auto message = connection->Receive();
    if (!message.ok()) {
      ADD_FAILURE() << message.status();
      return {};
    }
    if (message->report().state() == state) return message->report();
  }
}

v1::LinkMessage Go(int64_t epoch) {
  v1::LinkMessage message;
  message.mutable_go()->set_job("tiny-1");
  message.mutable_go()->set_epoch(epoch);
  return message;
}

// The mapping behind the page that carries the arena's name (worker/memory/arena.h), in another
// process's maps.
int64_t MappedArenaBytes(pid_t pid) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find("/memfd:terrace-arena-0") == std::string::npos || !std::getline(maps, line))
      continue;
    const size_t dash = line.find('-');
    return static_cast<int64_t>(std::stoull(line.substr(dash + 1), nullptr, 16) -
                                std::stoull(line, nullptr, 16));
  }
  return -1;
}

int64_t ResidentBytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

TEST(RankDaemonTest, ReservesExactlyWhatTheProgramSaysAndLittleElse) {
  RankJob job("memory", {});
  const pid_t pid = job.Start(0, /*daemon=*/true);
  const auto daemon = Dial(job);
  ASSERT_NE(daemon, nullptr) << job.log(0);
  const v1::RankReport ready = AwaitState(daemon.get(), v1::RANK_READY);
  ASSERT_EQ(job.program().arenas_size(), 1);
  const int64_t predicted = job.program().arenas(0).bytes(), page = sysconf(_SC_PAGESIZE);
  EXPECT_EQ(MappedArenaBytes(pid), (predicted + page - 1) / page * page);
  EXPECT_EQ(ready.progress().arena_bytes(), predicted);
  EXPECT_LT(ResidentBytes(pid) - predicted, 200 << 20);
  EXPECT_GT(ready.progress().external_bytes(), 1 << 20);
  EXPECT_LT(ready.progress().external_bytes(), 200 << 20);
  kill(pid, SIGTERM);  // before Go: nothing to save
  EXPECT_EQ(RankJob::WaitForExit(pid), 0);
  EXPECT_TRUE(job.Outcome().stopped_early());
  EXPECT_FALSE(fs::exists(job.checkpoint(0)));
}

TEST(RankDaemonTest, WaitsForItsOwnGoAndOutlivesItsDaemon) {
  RankJob job("daemon", {.steps = 100'000, .checkpoint_every = 0});
  const pid_t pid = job.Start(0, /*daemon=*/true);
  auto daemon = Dial(job);
  ASSERT_NE(daemon, nullptr) << job.log(0);
  AwaitState(daemon.get(), v1::RANK_READY);
  ASSERT_TRUE(daemon->Send(Go(2)).ok());  // of an older epoch: not for this process
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_THAT(job.log(0), testing::Not(HasSubstr("RANK_RUNNING")));
  ASSERT_TRUE(daemon->Send(Go(3)).ok());
  AwaitState(daemon.get(), v1::RANK_RUNNING);
  daemon.reset();
  ASSERT_TRUE(WaitUntil([&] { return job.log(0).find("step 50 of") != std::string::npos; }))
      << job.log(0);
  daemon = Dial(job);
  ASSERT_NE(daemon, nullptr);
  EXPECT_GE(AwaitState(daemon.get(), v1::RANK_RUNNING).progress().step(), 1);
  v1::LinkMessage stop;
  stop.mutable_stop()->set_job("tiny-1");
  stop.mutable_stop()->set_epoch(3);
  stop.mutable_stop()->set_checkpoint(true);
  ASSERT_TRUE(daemon->Send(stop).ok());
  const v1::RankReport end = AwaitState(daemon.get(), v1::RANK_SUCCEEDED);
  EXPECT_TRUE(end.stopped_early());
  EXPECT_TRUE(fs::exists(end.progress().checkpoint()));
  EXPECT_EQ(RankJob::WaitForExit(pid), 0);
}

}  // namespace
}  // namespace terrace
