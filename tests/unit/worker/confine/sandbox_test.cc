// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "worker/confine/confine.h"
#include "worker/confine/landlock.h"
#include "worker/confine/privileges.h"
#include "worker/confine/reach.h"
#include "worker/confine/syscall_filter.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr long kCreateRuleset = 444;

// The error number that an attempt ends with in a child that is confined first; 0: it succeeds.
// The child's test must not print: it may not write.
int Attempt(const std::function<void()>& confine, const std::function<int()>& attempt) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    confine();
    _exit(attempt());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  return WEXITSTATUS(status);
}

// As a kernel without that call.
void Remove(long call) {
  sock_filter lines[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
                         {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<uint32_t>(call)},
                         {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS},
                         {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program = {4, lines};
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(200);
}

int Open(const std::string& path, int flags) {
  return open(path.c_str(), flags | O_CLOEXEC, 0600) >= 0 ? 0 : errno;
}
int Of(int result) { return result == 0 ? 0 : errno; }

class LandlockTest : public testing::Test {
 protected:
  void SetUp() override {
    if (LandlockVersion() == 0) GTEST_SKIP() << "this kernel has no Landlock";
    std::string folder = testing::TempDir() + "landlock_XXXXXX";
    folder_ = mkdtemp(folder.data());
    for (const char* name : {"read", "change", "own", "other"}) fs::create_directory(At(name));
    for (const char* name : {"read/a", "change/a", "other/a"}) std::ofstream(At(name)) << "a";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string At(const std::string& name) const { return folder_ + "/" + name; }
  int Confined(bool reads, const std::function<int()>& attempt) const {
    const LandlockRules rules = {.paths = {{At("read"), Reach::kRead},
                                           {At("change"), Reach::kChange},
                                           {At("own"), Reach::kOwn},
                                           {At("absent"), Reach::kChange},
                                           {"/dev/null", Reach::kDevice}},
                                 .reads = reads};
    return Attempt(
        [&] {
          const auto restricted = RestrictFiles(rules);
          if (!restricted.ok() || !*restricted) _exit(201);
        },
        attempt);
  }

  std::string folder_;
};

TEST_F(LandlockTest, OnlyWhatIsNamedIsRead) {
  EXPECT_EQ(Confined(true, [&] { return Open(At("read/a"), O_RDONLY); }), 0);
  EXPECT_EQ(Confined(true, [&] { return Open(At("change/a"), O_RDWR); }), 0);
  EXPECT_EQ(Confined(true, [&] { return Open(At("other/a"), O_RDONLY); }), EACCES);
  EXPECT_EQ(Confined(true, [] { return Open("/etc/shadow", O_RDONLY); }), EACCES);
  EXPECT_EQ(Confined(true, [] { return Open("/proc/1/environ", O_RDONLY); }), EACCES);
  fs::create_symlink(At("other/a"), At("read/link"));
  EXPECT_EQ(Confined(true, [&] { return Open(At("read/link"), O_RDONLY); }), EACCES);
}

TEST_F(LandlockTest, WithoutRootsReadingIsFreeAndChangingIsNot) {
  EXPECT_EQ(Confined(false, [&] { return Open(At("other/a"), O_RDONLY); }), 0);
  EXPECT_EQ(Confined(false, [&] { return Open(At("other/a"), O_WRONLY); }), EACCES);
  EXPECT_EQ(Confined(false, [&] { return Open(At("other/new"), O_WRONLY | O_CREAT); }), EACCES);
}

TEST_F(LandlockTest, OnlyWhatIsNamedIsChanged) {
  EXPECT_EQ(Confined(true, [&] { return Open(At("read/a"), O_WRONLY); }), EACCES);
  EXPECT_EQ(Confined(true, [&] { return Of(unlink(At("read/a").c_str())); }), EACCES);
  EXPECT_EQ(Confined(true, [&] { return Of(mkdir(At("read/d").c_str(), 0700)); }), EACCES);
  EXPECT_EQ(Confined(true, [&] { return Of(mkdir(At("change/d").c_str(), 0700)); }), 0);
  EXPECT_EQ(
      Confined(true, [&] { return Of(rename(At("change/a").c_str(), At("change/d/b").c_str())); }),
      LandlockVersion() >= 2 ? 0 : EXDEV);
  EXPECT_EQ(Confined(true, [] { return Open("/dev/null", O_WRONLY); }), 0);
}

TEST_F(LandlockTest, LinksOnlyInTheRunDirectoryAndNoFifosOrPrograms) {
  EXPECT_EQ(Confined(true, [&] { return Of(symlink("/etc/passwd", At("change/l").c_str())); }),
            EACCES);
  EXPECT_EQ(Confined(true, [&] { return Of(symlink("/dev/shm/x", At("own/l").c_str())); }), 0);
  EXPECT_EQ(Confined(true, [&] { return Of(mkfifo(At("own/f").c_str(), 0600)); }), EACCES);
  fs::copy_file("/bin/true", At("read/program"));
  EXPECT_EQ(Confined(true,
                     [&] {
                       execl(At("read/program").c_str(), "program", nullptr);
                       return errno;
                     }),
            EACCES);
}

TEST(SandboxTest, AKernelWithoutLandlockChangesNothing) {
  const auto confine = [] {
    Remove(kCreateRuleset);
    const auto restricted = RestrictFiles({.paths = {}, .reads = true});
    if (LandlockVersion() != 0 || !restricted.ok() || *restricted) _exit(202);
  };
  EXPECT_EQ(Attempt(confine, [] { return Open("/etc/passwd", O_RDONLY); }), 0);
}

TEST(SandboxTest, AKernelWithoutSeccompChangesNothing) {
  const auto confine = [] {
    Remove(SYS_seccomp);
    const auto refused = RefuseCalls({});
    if (HasSeccomp() || !refused.ok() || *refused) _exit(203);
  };
  EXPECT_EQ(Attempt(confine, [] { return Of(unshare(CLONE_NEWUTS)) == EPERM && geteuid() == 0; }),
            0);
}

class SeccompTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasSeccomp()) GTEST_SKIP() << "this kernel has no seccomp";
  }
  static int Filtered(bool allow_io_uring, const std::function<int()>& attempt) {
    return Attempt(
        [&] {
          const auto refused = RefuseCalls({.io_uring = allow_io_uring});
          if (!refused.ok() || !*refused) _exit(204);
        },
        attempt);
  }
};

TEST_F(SeccompTest, EveryCallOfTheListIsRefused) {
  for (const RefusedCall& call : RefusedCalls()) {
    const int error = Filtered(false, [&] {
      return syscall(call.number, -1L, -1L, -1L, -1L, -1L, -1L) == -1 ? errno : 0;
    });
    EXPECT_EQ(error, EPERM) << call.name;
  }
}

TEST_F(SeccompTest, ThreadsAreMadeAndProcessesAreNot) {
  EXPECT_EQ(Filtered(false,
                     [] {
                       int made = 0;
                       std::thread([&made] { made = 1; }).join();
                       return made == 1 ? 0 : 1;
                     }),
            0);
  EXPECT_EQ(Filtered(false,
                     [] {
                       const pid_t child = fork();
                       if (child == 0) _exit(0);
                       return child < 0 ? errno : 0;
                     }),
            EPERM);
}

TEST_F(SeccompTest, OnlyJobsThatOffloadGetIoUring) {
  constexpr long kIoUringSetup = 425;
  const auto setup = [] { return syscall(kIoUringSetup, 0, nullptr) == -1 ? errno : 0; };
  EXPECT_EQ(Filtered(false, setup), EPERM);
  const int unfiltered = Attempt([] {}, setup);
  EXPECT_EQ(Filtered(true, setup), unfiltered);
}

// What a rank of a job does, in one: its folders are open to it, and nothing else is.
TEST_F(LandlockTest, ARankReachesWhatItsJobNames) {
  v1::RankConfig config;
  config.set_run_directory(At("own"));
  config.set_program_path(At("read/a"));
  config.mutable_spec()->mutable_checkpoint()->set_directory(At("change"));
  ConfineOptions options;
  options.roots.checkpoint = {At("change")};
  options.roots.data = {At("read")};
  const auto confine = [&] {
    if (DropPrivileges({}) != nullptr || !ConfineRank(config, options).ok()) _exit(205);
  };
  EXPECT_EQ(Attempt(confine, [&] { return Open(At("read/a"), O_RDONLY); }), 0);
  EXPECT_EQ(Attempt(confine, [&] { return Open(At("change/new"), O_RDWR | O_CREAT); }), 0);
  EXPECT_EQ(Attempt(confine, [&] { return Open(At("own/exit.pb"), O_RDWR | O_CREAT); }), 0);
  EXPECT_EQ(Attempt(confine, [&] { return Open(At("other/a"), O_RDONLY); }), EACCES);
  EXPECT_EQ(Attempt(confine, [] { return Open("/proc/self/environ", O_RDONLY); }), 0);
  // Of another process of the same user, to which the paths alone would lead.
  const std::string other = "/proc/" + std::to_string(getpid());
  EXPECT_EQ(Attempt(confine, [&] { return Open(other + "/status", O_RDONLY); }), 0);
  EXPECT_EQ(Attempt(confine, [&] { return Open(other + "/environ", O_RDONLY); }), EACCES);
  EXPECT_EQ(Attempt(confine, [] { return Open("/dev/shm/terrace-x", O_RDWR | O_CREAT); }), 0);
  unlink("/dev/shm/terrace-x");
  EXPECT_EQ(Attempt(confine, [] { return Of(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr)); }),
            EPERM);
  options.sandbox = false;
  EXPECT_EQ(Attempt(confine, [&] { return Open(At("other/a"), O_RDONLY); }), 0);
}

// It starts its program, and then reaches nothing of users, the network or files to change.
TEST_F(LandlockTest, WhatRendersTemplatesReadsTheSystemAlone) {
  ConfineOptions options;
  const auto confine = [&] {
    if (!ConfineTemplates("/usr/bin/python3", options).ok()) _exit(206);
  };
  const auto run = [] {
    execl("/usr/bin/env", "env", "-i", "/usr/bin/true", nullptr);
    return errno;
  };
  EXPECT_EQ(Attempt(confine, run), 0);
  EXPECT_EQ(Attempt(confine, [] { return Open("/usr/bin/env", O_RDONLY); }), 0);
  EXPECT_EQ(Attempt(confine, [&] { return Open(At("read/a"), O_RDONLY); }), EACCES);
  EXPECT_EQ(Attempt(confine, [&] { return Open(At("own/new"), O_WRONLY | O_CREAT); }), EACCES);
  EXPECT_EQ(Attempt(confine, [] { return Open("/etc/passwd", O_RDONLY); }), EACCES);
  EXPECT_EQ(Attempt(confine, [] { return socket(AF_INET, SOCK_STREAM, 0) >= 0 ? 0 : errno; }),
            EPERM);
  EXPECT_EQ(Attempt(confine, [] { return fork() >= 0 ? 0 : errno; }), EPERM);
  options.sandbox = false;
  EXPECT_EQ(Attempt(confine, [&] { return Open(At("read/a"), O_RDONLY); }), 0);
}

TEST(ConfineTest, OptionsTravelToTheRank) {
  ConfineOptions options;
  EXPECT_TRUE(ArgumentsOf(options).empty());
  options.roots.data = {"/a", "/b"};
  options.roots.offload = {"/c"};
  options.sandbox = false;
  EXPECT_THAT(ArgumentsOf(options), testing::ElementsAre("--data-root", "/a", "--data-root", "/b",
                                                         "--offload-root", "/c", "--no-sandbox"));
}

}  // namespace
}  // namespace terrace
