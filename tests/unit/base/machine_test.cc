// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// Cores with caches as Linux describes them, in a folder of the test's own.
class CachesTest : public testing::Test {
 protected:
  CachesTest()
      : folder_(testing::TempDir() + "/" +
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
  }
  ~CachesTest() override { std::filesystem::remove_all(folder_); }

  void Cache(int core, int index, const std::string& size, const std::string& shared_by) {
    const std::string cache = absl::StrCat(folder_, "/cpu", core, "/cache/index", index);
    std::filesystem::create_directories(cache);
    std::ofstream(cache + "/size") << size << "\n";
    std::ofstream(cache + "/shared_cpu_list") << shared_by << "\n";
  }

  const std::string folder_;
};

TEST_F(CachesTest, EachOfTheLastLevelCountsOnce) {
  for (int core = 0; core < 4; ++core) {
    Cache(core, 0, "48K", absl::StrCat(core));
    Cache(core, 1, "1024K", absl::StrCat(core));
    Cache(core, 2, "32768K", core < 2 ? "0-1" : "2-3");
  }
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(LastLevelCacheBytes(folder_, {0, 1}), 32 * kMiB);
  EXPECT_EQ(LastLevelCacheBytes(folder_, {1, 2}), 64 * kMiB);
  EXPECT_EQ(LastLevelCacheBytes(folder_, {0, 1, 2, 3}), 64 * kMiB);
}

TEST_F(CachesTest, WhatTheSystemDoesNotTellIsNone) {
  Cache(0, 0, "1024K", "0");
  EXPECT_EQ(LastLevelCacheBytes(folder_, {0, 1}), 0);
  Cache(1, 0, "many", "1");
  EXPECT_EQ(LastLevelCacheBytes(folder_, {0, 1}), 0);
  EXPECT_EQ(LastLevelCacheBytes(folder_, {}), 0);
}

TEST(MachineTest, TheHashTellsHardwareAndVersionsApart) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const Machine machine = {
      .processor = "Fast", .flags = "avx2 fma", .cores = 8, .memory_bytes = 64 * kGiB};
  const std::string hash = MachineHash(machine, "1.0");
  EXPECT_EQ(hash.size(), 16);
  Machine other = machine;
  other.processor = "Slow";
  EXPECT_NE(MachineHash(other, "1.0"), hash);
  other = machine;
  other.flags = "avx2";
  EXPECT_NE(MachineHash(other, "1.0"), hash);
  other = machine;
  other.cores = 4;
  EXPECT_NE(MachineHash(other, "1.0"), hash);
  other = machine;
  other.memory_bytes = 32 * kGiB;
  EXPECT_NE(MachineHash(other, "1.0"), hash);
  EXPECT_NE(MachineHash(machine, "1.1"), hash);
  // A kernel that keeps some more for itself is the same machine.
  other = machine;
  other.memory_bytes -= kGiB / 4;
  EXPECT_EQ(MachineHash(other, "1.0"), hash);
}

TEST(MachineTest, ThisMachineHasANameAndCores) {
  const Machine machine = ThisMachine();
  EXPECT_FALSE(machine.processor.empty());
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory_bytes, 0);
}

}  // namespace
}  // namespace terrace
