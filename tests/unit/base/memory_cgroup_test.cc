// SPDX-License-Identifier: Apache-2.0
#include "base/memory_cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace terrace {
namespace {

namespace fs = std::filesystem;

class MemoryCgroupTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::optional<MemoryCgroup> Find() {
    return MemoryCgroup::Find(
        7, {.proc = (root_ / "proc").string(), .cgroup = (root_ / "cgroup").string()});
  }

  const fs::path root_ = fs::path(testing::TempDir()) / ("cgroup-" + std::to_string(getpid()));
};

TEST_F(MemoryCgroupTest, VersionTwoTakesTheSmallestLimitOfAllParents) {
  Write("proc/7/cgroup", "0::/jobs/one\n");
  Write("cgroup/jobs/memory.max", "1000\n");
  Write("cgroup/jobs/one/memory.max", "max\n");
  Write("cgroup/jobs/one/memory.current", "600\n");
  Write("cgroup/jobs/one/memory.events", "low 0\nmax 4\noom 1\noom_kill 2\n");
  const auto group = Find();
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->name(), "/jobs/one");
  EXPECT_EQ(group->LimitBytes(), 1000);
  EXPECT_EQ(group->UsedBytes(), 600);
  EXPECT_EQ(group->OomKills(), 2);
}

TEST_F(MemoryCgroupTest, VersionOneIsFoundByItsController) {
  Write("proc/7/cgroup", "5:cpu,cpuacct:/else\n4:memory:/one\n0::/\n");
  Write("cgroup/memory/one/memory.usage_in_bytes", "600\n");
  Write("cgroup/memory/one/memory.stat", "cache 5\nhierarchical_memory_limit 2000\n");
  Write("cgroup/memory/one/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  const auto group = Find();
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->name(), "/one");
  EXPECT_EQ(group->LimitBytes(), 2000);
  EXPECT_EQ(group->UsedBytes(), 600);
  EXPECT_EQ(group->OomKills(), 3);
}

TEST_F(MemoryCgroupTest, AContainerMountsItsOwnGroupAsTheRoot) {
  Write("proc/7/cgroup", "4:memory:/outside/name\n");
  Write("cgroup/memory/memory.usage_in_bytes", "1\n");
  Write("cgroup/memory/memory.stat", "hierarchical_memory_limit 9223372036854771712\n");
  const auto group = Find();
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->UsedBytes(), 1);
  EXPECT_EQ(group->LimitBytes(), std::nullopt) << "that number means none";
  EXPECT_EQ(group->OomKills(), std::nullopt);
}

TEST_F(MemoryCgroupTest, WhatChangesIsReadAgain) {
  Write("proc/7/cgroup", "0::/one\n");
  Write("cgroup/one/memory.current", "600\n");
  Write("cgroup/one/memory.events", "oom 1\noom_kill 0\n");
  const auto group = Find();
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->UsedBytes(), 600);
  EXPECT_EQ(group->OomKills(), 0);
  Write("cgroup/one/memory.current", "7000\n");
  Write("cgroup/one/memory.events", "oom 2\noom_kill 1\n");
  EXPECT_EQ(group->UsedBytes(), 7000);
  EXPECT_EQ(group->OomKills(), 1);
}

TEST_F(MemoryCgroupTest, WithoutAGroupThereIsNone) {
  EXPECT_FALSE(Find().has_value());
  Write("proc/7/cgroup", "4:memory:/one\n");
  EXPECT_FALSE(Find().has_value());
}

}  // namespace
}  // namespace terrace
