// What the system may refuse: io_uring, locked memory, O_DIRECT, space, writing at all, or an
// answer. Limits are set in a process of their own. What needs root is skipped without it.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <iostream>

#include "gmock/gmock.h"
#include "tests/unit/worker/memory/nvme/nvme_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ExitedWithCode;
using testing::HasSubstr;

constexpr int64_t kBytes = 1 << 20;

class NvmeSystemTest : public NvmeFixture {
 protected:
  void TearDown() override {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
    NvmeFixture::TearDown();
  }
  bool Mount(unsigned long flags, const char* options) {
    mounted_ = ::mount("terrace", folder_.c_str(), "tmpfs", flags, options) == 0;
    return mounted_;
  }
  NvmeOptions InFolder(int64_t bytes) const {
    NvmeOptions options = {.name = "job", .bytes = bytes};
    options.paths = {folder_};
    return options;
  }
  bool mounted_ = false;
};

bool RoundTrip(NvmeFile& file, NvmeQueue& queue) {
  Arena memory = MakeNvmeMemory(kBytes);
  FillRandom({memory.data(), kBytes}, 3);
  const std::vector<std::byte> expected(memory.data(), memory.data() + kBytes);
  const NvmePiece piece = {.memory = memory.data(), .bytes = kBytes};
  queue.RegisterMemory({memory.data(), kBytes});
  if (!queue.Transfer(NvmeDirection::kWrite, {&piece, 1}).ok()) return false;
  std::memset(memory.data(), 0, kBytes);
  if (!queue.Transfer(NvmeDirection::kRead, {&piece, 1}).ok()) return false;
  std::vector<std::byte> got(100);
  return file.Read(77, got).ok() && std::memcmp(got.data(), &expected[77], 100) == 0 &&
         std::memcmp(memory.data(), expected.data(), kBytes) == 0;
}

// Says on standard error what the queue is, and ends the process.
[[noreturn]] void RoundTripAndExit(const NvmeOptions& options) {
  int code = 1;
  auto file = NvmeFile::Create(options);
  if (file.ok()) {
    auto queue = (*file)->NewQueue();
    if (queue.ok() && RoundTrip(**file, **queue)) code = 0;
    if (queue.ok()) std::cerr << (*queue)->description() << std::endl;
  } else {
    std::cerr << file.status() << std::endl;
    code = 2;
  }
  std::_Exit(code);
}

void Filter(std::vector<sock_filter> filter) {
  sock_fprog program = {.len = static_cast<uint16_t>(filter.size()), .filter = filter.data()};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) std::_Exit(3);
}

void RefuseIoUring(int error) {
  Filter({
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  });
}

TEST_F(NvmeSystemTest, ThreadsTakeOverWhereIoUringIsRefused) {
  const NvmeOptions options = InFolder(kBytes);
  for (const int error : {EPERM, ENOSYS}) {
    EXPECT_EXIT(
        {
          RefuseIoUring(error);
          RoundTripAndExit(options);
        },
        ExitedWithCode(0), "8 threads with pread and pwrite: the system refuses io_uring: ");
  }
}

TEST_F(NvmeSystemTest, IoUringAskedForByNameIsNotReplaced) {
  NvmeOptions options = InFolder(kBytes);
  options.engine = "io_uring";
  EXPECT_EXIT(
      {
        RefuseIoUring(EPERM);
        RoundTripAndExit(options);
      },
      ExitedWithCode(2), "nvme.engine: io_uring: .*Operation not permitted; .*engine: auto");
}

void LimitLockedMemory(uint64_t bytes) {
  const rlimit limit = {.rlim_cur = bytes, .rlim_max = bytes};
  ::setrlimit(RLIMIT_MEMLOCK, &limit);
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> none = {};
  ::syscall(SYS_capset, &header, none.data());  // root may lock without limit
}

TEST_F(NvmeSystemTest, BuffersStayUnregisteredWhereMemlockIsTooSmall) {
  NvmeOptions options = InFolder(kBytes);
  options.engine = "io_uring";
  EXPECT_EXIT(
      {
        LimitLockedMemory(65536);
        RoundTripAndExit(options);
      },
      ExitedWithCode(0), "unregistered buffers: memlock 64 KiB, 1 MiB to pin; 1 file");
}

// As on a file system that knows no O_DIRECT.
void RefuseDirect() {
  Filter({
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 2 * sizeof(uint64_t)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  });
}

TEST_F(NvmeSystemTest, GoesThroughThePageCacheWhereODirectIsRefused) {
  const NvmeOptions options = InFolder(kBytes);
  EXPECT_EXIT(
      {
        RefuseDirect();
        RoundTripAndExit(options);
      },
      ExitedWithCode(0), "; 1 file, page cache: the file system refuses O_DIRECT");
}

TEST_F(NvmeSystemTest, AFullFolderIsRefusedWithItsNumbers) {
  if (!Mount(0, "size=4m")) GTEST_SKIP() << "needs the right to mount";
  const absl::Status status = NvmeFile::Create(InFolder(8 << 20)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder_ + " has 4 MiB free and this rank needs 8.0 MiB there"),
                    HasSubstr("offload less")));
  const auto file = MakeNvmeFile(InFolder(kBytes));
  ASSERT_NE(file, nullptr);
  const auto queue = MakeNvmeQueue(*file);
  EXPECT_TRUE(RoundTrip(*file, *queue)) << queue->description();
}

TEST_F(NvmeSystemTest, AReadOnlyFolderIsRefused) {
  if (!Mount(MS_RDONLY, "size=4m")) GTEST_SKIP() << "needs the right to mount";
  const absl::Status status = NvmeFile::Create(InFolder(kBytes)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder_ + ": Read-only"), HasSubstr("mount it writable")));
}

// Memory whose first touch blocks in the kernel until somebody who never comes provides a page.
std::byte* MemoryThatBlocks(int64_t bytes) {
  const auto fault_fd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api = {.api = UFFD_API};
  if (fault_fd < 0 || ::ioctl(fault_fd, UFFDIO_API, &api) != 0) return nullptr;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uffdio_register range = {};
  range.range = {.start = reinterpret_cast<uintptr_t>(memory), .len = static_cast<uint64_t>(bytes)};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (::ioctl(fault_fd, UFFDIO_REGISTER, &range) != 0) return nullptr;
  return static_cast<std::byte*>(memory);
}

[[noreturn]] void ReadIntoMemoryThatBlocksAndExit(const NvmeOptions& options) {
  std::byte* const memory = MemoryThatBlocks(kBytes);
  if (memory == nullptr) std::_Exit(3);
  const auto file = MakeNvmeFile(options);
  auto queue = MakeNvmeQueue(*file);
  const NvmePiece piece = {.memory = memory, .bytes = kBytes};
  std::cerr << queue->Transfer(NvmeDirection::kRead, {&piece, 1}) << std::endl;
  queue = nullptr;
  std::_Exit(0);
}

TEST_F(NvmeSystemTest, ThreadsWhoseCallsNeverReturnAreLeftBehind) {
  if (MemoryThatBlocks(kBytes) == nullptr) GTEST_SKIP() << "needs userfaultfd of the kernel";
  NvmeOptions options = InFolder(kBytes);
  options.engine = "threads";
  options.timeout = absl::Milliseconds(200);
  EXPECT_EXIT(ReadIntoMemoryThatBlocksAndExit(options), ExitedWithCode(0), "no answer for 200ms");
}

}  // namespace
}  // namespace terrace
