// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/host_limits.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A /proc and a /sys of the test's own.
class HostLimitsTest : public testing::Test {
 protected:
  HostLimitsTest() {
    root_ = (std::filesystem::temp_directory_path() / "terrace-limits-XXXXXX").string();
    EXPECT_NE(::mkdtemp(root_.data()), nullptr);
  }
  ~HostLimitsTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void MountV2(const std::string& shown = "/") {
    Write("/proc/self/mountinfo", "30 23 0:26 / /sys rw - sysfs sysfs rw\n31 23 0:27 " + shown +
                                      " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  }

  std::string root_;
};

TEST_F(HostLimitsTest, AvailableMemoryIsWhatTheSystemSays) {
  Write("/proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n");
  EXPECT_EQ(ReadHostLimits(root_).available_bytes, 2048 * 1024);
}

TEST_F(HostLimitsTest, WithoutFilesThereAreNoLimits) {
  const HostLimits limits = ReadHostLimits(root_);
  EXPECT_EQ(limits.available_bytes, kNoLimit);
  EXPECT_EQ(limits.group.free_bytes, kNoLimit);
}

TEST_F(HostLimitsTest, AGroupAllowsItsLimitLessWhatIsUsedAndNotCache) {
  MountV2();
  Write("/proc/self/cgroup", "0::/jobs/a\n");
  Write("/sys/fs/cgroup/jobs/a/memory.max", std::to_string(4 * kGiB) + "\n");
  Write("/sys/fs/cgroup/jobs/a/memory.current", std::to_string(3 * kGiB) + "\n");
  Write("/sys/fs/cgroup/jobs/a/memory.stat",
        "anon 5\ninactive_file " + std::to_string(kGiB) + "\nactive_file 1024\n");
  const GroupLimit group = ReadHostLimits(root_).group;
  EXPECT_EQ(group.limit_bytes, 4 * kGiB);
  EXPECT_EQ(group.free_bytes, 2 * kGiB + 1024);
  EXPECT_EQ(group.file, root_ + "/sys/fs/cgroup/jobs/a/memory.max");
}

TEST_F(HostLimitsTest, TheTightestOfTheParentsCounts) {
  MountV2();
  Write("/proc/self/cgroup", "0::/jobs/a/rank\n");
  Write("/sys/fs/cgroup/jobs/a/rank/memory.max", "max\n");
  Write("/sys/fs/cgroup/jobs/a/memory.max", std::to_string(8 * kGiB) + "\n");
  Write("/sys/fs/cgroup/jobs/memory.max", std::to_string(2 * kGiB) + "\n");
  Write("/sys/fs/cgroup/jobs/memory.current", "4096\n");
  const GroupLimit group = ReadHostLimits(root_).group;
  EXPECT_EQ(group.free_bytes, 2 * kGiB - 4096);
  EXPECT_EQ(group.file, root_ + "/sys/fs/cgroup/jobs/memory.max");
}

TEST_F(HostLimitsTest, InAContainerTheMountShowsOnlyThePartBelow) {
  MountV2("/docker/abc");
  Write("/proc/self/cgroup", "0::/docker/abc\n");
  Write("/sys/fs/cgroup/memory.max", "1048576\n");
  EXPECT_EQ(ReadHostLimits(root_).group.limit_bytes, 1048576);
}

TEST_F(HostLimitsTest, VersionOneIsReadAsWell) {
  Write("/proc/self/mountinfo",
        "35 23 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "36 23 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  Write("/proc/self/cgroup", "4:memory:/process/x\n1:cpu:/elsewhere\n0::/\n");
  Write("/sys/fs/cgroup/memory/process/x/memory.limit_in_bytes", "1000000\n");
  Write("/sys/fs/cgroup/memory/process/x/memory.usage_in_bytes", "400000\n");
  Write("/sys/fs/cgroup/memory/process/x/memory.stat",
        "inactive_file 1\ntotal_inactive_file 100000\ntotal_active_file 50000\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // v1's "none"
  const GroupLimit group = ReadHostLimits(root_).group;
  EXPECT_EQ(group.limit_bytes, 1000000);
  EXPECT_EQ(group.free_bytes, 750000);
}

TEST_F(HostLimitsTest, OfThisProcessTheyAreRead) {
  const HostLimits limits = ReadHostLimits();
  EXPECT_GT(limits.available_bytes, 0);
  EXPECT_NE(limits.available_bytes, kNoLimit);
}

}  // namespace
}  // namespace terrace
