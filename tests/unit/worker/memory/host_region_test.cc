// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/host_region.h"

#include <linux/capability.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/memory/host_node.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// "VmLck:   8192 kB" of this process.
int64_t LockedBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmLck:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

// Takes away what would let the child lock more than RLIMIT_MEMLOCK says.
void LimitLockedMemory(int64_t bytes) {
  const rlimit limit{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) ::_exit(90);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (::syscall(SYS_capset, &header, none) != 0) ::_exit(91);
}

// The exit code of `body` in a process of its own.
int InChild(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A program with sanitizers has another mlock, which does nothing and says that all is well.
bool LocksNothing() {
  return InChild([] {
           alignas(4096) static std::byte page[4096];
           return ::mlock(page, sizeof page) == 0 && LockedBytes() == 0 ? 1 : 0;
         }) == 1;
}

TEST(HostRegionTest, IsOfExactSizeZeroAndReadsWhatWasWritten) {
  const auto region = HostRegion::Reserve("terrace-arena-4", 3 * 4096, 2, ReadHostLimits());
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ((*region)->bytes(), 3 * 4096);
  for (int i = 0; i < 3 * 4096; ++i) ASSERT_EQ((*region)->data()[i], std::byte{0});
  const std::vector<std::byte> written(100, std::byte{7});
  std::vector<std::byte> read(100);
  ASSERT_TRUE((*region)->Write(4000, written).ok());
  ASSERT_TRUE((*region)->Read(4000, read).ok());
  EXPECT_EQ(read, written);
  EXPECT_EQ((*region)->Read(3 * 4096 - 99, read).code(), absl::StatusCode::kOutOfRange);
}

TEST(HostRegionTest, IsLockedWithinTheLimit) {
  if (LocksNothing()) GTEST_SKIP() << "the sanitizer's mlock locks nothing";
  const int exit_code = InChild([] {
    LimitLockedMemory(64 << 10);
    const auto region = HostRegion::Reserve("terrace-arena-4", 40 << 10, 1, ReadHostLimits());
    if (!region.ok()) return 1;
    if ((*region)->pinned_bytes() != 40 << 10) return 2;
    return LockedBytes() == 40 << 10 ? 0 : 3;
  });
  EXPECT_EQ(exit_code, 0);
}

TEST(HostRegionTest, AboveTheLimitItWorksUnlockedAndSaysWhy) {
  const int exit_code = InChild([] {
    LimitLockedMemory(64 << 10);
    const auto region = HostRegion::Reserve("terrace-arena-4", 1 << 20, 1, ReadHostLimits());
    if (!region.ok()) return 1;
    if ((*region)->pinned_bytes() != 0 || LockedBytes() != 0) return 2;
    const std::string& why = (*region)->unlocked_because();
    const bool named = why.find("RLIMIT_MEMLOCK is 65536") != std::string::npos &&
                       why.find("1048576") != std::string::npos &&
                       why.find("ulimit -l") != std::string::npos;
    (*region)->data()[(1 << 20) - 1] = std::byte{1};
    return named ? 0 : 3;
  });
  EXPECT_EQ(exit_code, 0);
}

// The limits were read, then somebody else locked: the system's refusal is the same slower path.
TEST(HostRegionTest, WhenTheSystemRefusesNothingStaysLocked) {
  if (LocksNothing()) GTEST_SKIP() << "the sanitizer's mlock locks nothing";
  const int exit_code = InChild([] {
    LimitLockedMemory(64 << 10);
    const auto region = HostRegion::Reserve("terrace-arena-4", 1 << 20, 1, HostLimits{});
    if (!region.ok()) return 1;
    if ((*region)->unlocked_because().find("mlock of 1048576 bytes") == std::string::npos) return 2;
    return (*region)->pinned_bytes() == 0 && LockedBytes() == 0 ? 0 : 3;
  });
  EXPECT_EQ(exit_code, 0);
}

TEST(HostNodeTest, NodeListsAreReadAsTheKernelWritesThem) {
  EXPECT_THAT(ParseNodeList("0\n"), ElementsAre(0));
  EXPECT_THAT(ParseNodeList("0-2,5,7-8\n"), ElementsAre(0, 1, 2, 5, 7, 8));
  for (const char* bad : {"", "a", "3-1", "0-", "0-1-2", "-1", "0-99999999"})
    EXPECT_THAT(ParseNodeList(bad), IsEmpty()) << bad;
}

TEST(HostNodeTest, PreferredPagesCarryThePolicy) {
  auto arena = Arena::Reserve("terrace-arena-4", 1 << 20);
  ASSERT_TRUE(arena.ok());
  const std::span<std::byte> memory(arena->data(), 1 << 20);
  if (!PreferNode(memory, 0)) GTEST_SKIP() << "mbind is not allowed here";
  int policy = -1;
  ASSERT_EQ(::syscall(SYS_get_mempolicy, &policy, nullptr, 0, memory.data(), MPOL_F_ADDR), 0);
  EXPECT_EQ(policy, MPOL_PREFERRED);
  EXPECT_FALSE(PreferNode(memory, -1));
}

}  // namespace
}  // namespace terrace
