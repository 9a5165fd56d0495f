// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/memory/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "worker/daemon/abandoned_flights.h"
#include "worker/daemon/memory/kernel_log.h"
#include "worker/flight/flight_recorder.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// 500 MiB of device arena of 700, 100 MiB of host arena, 160 MiB allowed outside.
v1::RankMemory Holding(int64_t external_mib) {
  v1::RankMemory memory;
  v1::TierMemory* device = memory.add_tiers();
  device->set_tier(v1::DEVICE);
  device->set_reserved_bytes(500 * kMiB);
  device->set_limit_bytes(700 * kMiB);
  v1::TierMemory* host = memory.add_tiers();
  host->set_tier(v1::HOST);
  host->set_predicted_bytes(100 * kMiB);
  memory.set_external_bytes(external_mib * kMiB);
  memory.set_external_allowed_bytes(160 * kMiB);
  return memory;
}

TEST(MemoryLimitTest, OverTheDevicesLimitIsOverWithWhatIsOutsideOnly) {
  EXPECT_EQ(ExceededLimit(Holding(200), {}, {}), "");
  EXPECT_EQ(ExceededLimit(Holding(201), {}, {}),
            "outside the arenas it holds 201.0 MiB (160.0 MiB allowed): 701.0 MiB with its device "
            "arena, and 700.0 MiB is its limit");
}

TEST(MemoryLimitTest, WhatThePlanAllowsIsNeverTooMuch) {
  const HardLimits tight{.cgroup = "/jobs", .cgroup_bytes = 10 * kMiB};
  EXPECT_EQ(ExceededLimit(Holding(160), {}, tight), "");
  EXPECT_EQ(ExceededLimit({}, {}, tight), "") << "nothing is known yet";
}

// 500 + 100 + 176 = 776 is more than 800 - 800 / 32 = 775.
TEST(MemoryLimitTest, AHardLimitIsLeftSomeRoom) {
  const HardLimits group{.cgroup = "/jobs", .cgroup_bytes = 800 * kMiB};
  EXPECT_EQ(ExceededLimit(Holding(175), {}, group), "");
  EXPECT_THAT(ExceededLimit(Holding(176), {}, group),
              HasSubstr("near the 800.0 MiB of control group /jobs"));
  v1::RankConfig two;
  two.set_local_ranks(2);
  EXPECT_THAT(ExceededLimit(Holding(175), two, group), HasSubstr("ranks here"));
  v1::RankConfig cuda;
  cuda.mutable_spec()->mutable_resources()->set_device("cuda");
  EXPECT_EQ(ExceededLimit(Holding(176), cuda, group), "") << "its device is not in that group";
  const HardLimits space{.address_space_bytes = 3200 * kMiB,
                         .address_space_used_bytes = 3101 * kMiB};
  EXPECT_THAT(ExceededLimit(Holding(176), {}, space), HasSubstr("near its ulimit of 3.1 GiB"));
}

TEST(MemoryLimitTest, TheUlimitOfAProcessIsReadFromOutside) {
  EXPECT_FALSE(ReadHardLimits(getpid()).address_space_bytes.has_value());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit space{.rlim_cur = 5'000 * kMiB, .rlim_max = 5'000 * kMiB};
    setrlimit(RLIMIT_AS, &space);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const HardLimits limits = ReadHardLimits(child);
  EXPECT_EQ(limits.address_space_bytes, 5'000 * kMiB);
  EXPECT_GT(limits.address_space_used_bytes, kMiB);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(MemoryLimitTest, ARankDiesOfMemoryByTheOomKillerOrByAnAllocationThatFails) {
  MemoryFacts facts;
  facts.how = "killed by signal 6 (SIGABRT)";
  EXPECT_TRUE(DiedOfMemory(facts, "  what():  std::bad_alloc"));
  EXPECT_FALSE(DiedOfMemory(facts, "assertion failed"));
  facts.how = "killed by signal 9 (SIGKILL)";
  EXPECT_FALSE(DiedOfMemory(facts, "step 7"));
  facts.oom_kill_is_logged = true;
  EXPECT_TRUE(DiedOfMemory(facts, "step 7"));
  EXPECT_THAT(ShortVerdict(facts), HasSubstr("OOM killer (its log names the process)"));
}

TEST(KernelLogTest, ARecordOfTheLastMinuteThatNamesTheProcessCounts) {
  const std::string path = testing::TempDir() + absl::StrCat("kmsg", getpid());
  std::ofstream(path) << "6,1,90000000,-;Memory cgroup out of memory: Killed process 4711 "
                         "(terrace-rank) total-vm:1kB\n"
                      << "6,2,90000001,-;Killed process 12 (other) total-vm:1kB\n";
  EXPECT_TRUE(OomKillIsLogged(4711, 100'000'000, path));
  EXPECT_FALSE(OomKillIsLogged(471, 100'000'000, path));
  EXPECT_FALSE(OomKillIsLogged(12, 100'000'000, path)) << "not a rank";
  EXPECT_FALSE(OomKillIsLogged(4711, 200'000'000, path)) << "long ago: another process";
  EXPECT_FALSE(OomKillIsLogged(4711, 100'000'000, path + ".missing"));
  std::filesystem::remove(path);
}

TEST(AbandonedFlightsTest, OnlyThoseOfDeadProcessesAndOfSomeAgeAreRemoved) {
  std::string folder = testing::TempDir() + "flights_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const SystemClock clock;
  const auto copy = [&](const std::string& run, const std::string& name) {
    std::filesystem::copy_file(run + "/flight", folder + "/" + name);
  };
  const std::string run = folder + "/run";
  std::filesystem::create_directory(run);
  const pid_t child = fork();
  if (child == 0) {  // its recorder has its number
    { const auto flight = FlightWriter::Create(run, "program", 1, &clock); }
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  copy(run, "terrace-flight-dead");
  copy(run, "unrelated");
  { const auto flight = FlightWriter::Create(run, "program", 1, &clock); }
  copy(run, "terrace-flight-alive");
  std::ofstream(folder + "/terrace-flight-torn") << "x";
  EXPECT_EQ(RemoveAbandonedFlights(folder, geteuid(), 3600), 0) << "they are new";
  EXPECT_EQ(RemoveAbandonedFlights(folder, geteuid(), 0), 2);
  EXPECT_TRUE(std::filesystem::exists(folder + "/terrace-flight-alive"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/unrelated"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/terrace-flight-dead"));
  EXPECT_EQ(RemoveAbandonedFlights(folder + "/missing", geteuid(), 0), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace terrace
