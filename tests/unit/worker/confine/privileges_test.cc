// SPDX-License-Identifier: Apache-2.0
#include "worker/confine/privileges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace terrace {
namespace {

using testing::HasSubstr;

class PrivilegesTest : public testing::Test {
 protected:
  static bool KeepsLock() {
    const bool may_lock =
        RunAndRead("grep -q 'CapEff:.*[4-7c-f]...$' /proc/self/status && echo y") != "";
    const bool may_raise = RunAndRead("prlimit --memlock=unlimited:unlimited true && echo y") != "";
    return may_lock && !may_raise;
  }
  static std::string RunAndRead(const char* command) {
    std::string text;
    FILE* pipe = popen(command, "r");
    for (int c; (c = fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
    pclose(pipe);
    return text;
  }

  // The output of a program that a process without privileges executes.
  static std::string RunAfterDrop(const RankPrivileges& privileges, const char* path) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(ends[1], STDOUT_FILENO);
      if (DropPrivileges(privileges) != nullptr) _exit(1);
      execl("/bin/cat", "cat", path, nullptr);
      _exit(1);
    }
    close(ends[1]);
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, got);
    close(ends[0]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return text;
  }
};

TEST_F(PrivilegesTest, AProgramThatIsExecutedHasNoCapabilityAndGetsNone) {
  const std::string status = RunAfterDrop({}, "/proc/self/status");
  // That to lock memory stays where the limit cannot be raised instead.
  const std::string kept = KeepsLock() ? "0000000000004000" : "0000000000000000";
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
    EXPECT_THAT(status, HasSubstr(std::string(set) + ":\t" + kept));
  EXPECT_THAT(status, HasSubstr("NoNewPrivs:\t1"));
  if (geteuid() != 0) return;  // the bounding set is root's to empty
  EXPECT_THAT(status, HasSubstr("CapBnd:\t" + kept));
}

TEST_F(PrivilegesTest, LimitsAreSet) {
  EXPECT_THAT(RunAfterDrop({}, "/proc/self/limits"),
              HasSubstr("Max core file size        0                    0 "));
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const std::string most = std::to_string(std::min(files.rlim_max, kRankFilesMax));
  EXPECT_THAT(RunAfterDrop({}, "/proc/self/limits"),
              HasSubstr("Max open files            " + most + " "));
  rlimit core = {};
  ASSERT_EQ(getrlimit(RLIMIT_CORE, &core), 0);
  if (core.rlim_max < 4096) GTEST_SKIP() << "core files are forbidden here";
  EXPECT_THAT(RunAfterDrop({.core_bytes = 4096}, "/proc/self/limits"),
              HasSubstr("Max core file size        4096                 4096 "));
}

TEST_F(PrivilegesTest, TheUserIsChangedForGood) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  const auto user = FindRankUser("nobody");
  ASSERT_TRUE(user.ok()) << user.status();
  const std::string uid = std::to_string(user->uid), gid = std::to_string(user->gid);
  const std::string status = RunAfterDrop({.user = *user}, "/proc/self/status");
  EXPECT_THAT(status, HasSubstr("Uid:\t" + uid + "\t" + uid + "\t" + uid + "\t" + uid));
  EXPECT_THAT(status, HasSubstr("Gid:\t" + gid + "\t" + gid + "\t" + gid + "\t" + gid));
  EXPECT_THAT(status, HasSubstr("Groups:\t" + gid + " \n"));
  EXPECT_THAT(status, HasSubstr(KeepsLock() ? "CapEff:\t0000000000004000\n"
                                            : "CapEff:\t0000000000000000\n"));
}

TEST_F(PrivilegesTest, PathsThatARankCannotUseAreNamed) {
  std::string folder = testing::TempDir() + "privileges_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  chmod(folder.c_str(), 0755);
  const std::string absent = folder + "/absent";
  EXPECT_TRUE(CheckPaths({}, {{folder, R_OK | X_OK, "--data-root"}}).ok());
  const absl::Status missing =
      CheckPaths({}, {{folder, R_OK, "--data-root"}, {absent, W_OK, "--checkpoint-root"}});
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("--checkpoint-root: got " + absent));
  if (geteuid() == 0) {
    const auto user = FindRankUser("nobody");
    ASSERT_TRUE(user.ok());
    EXPECT_TRUE(CheckPaths({.user = *user}, {{folder, R_OK | X_OK, "--data-root"}}).ok());
    const absl::Status refused = CheckPaths({.user = *user}, {{folder, W_OK, "--checkpoint-root"}});
    EXPECT_THAT(std::string(refused.message()), HasSubstr("cannot write into as user nobody"));
  }
  std::filesystem::remove_all(folder);
}

TEST(RankUserTest, OnlyAnOrdinaryUserWillDo) {
  for (const char* name : {"no-such-user", "root", "0", "4294967294", ""}) {
    const auto user = FindRankUser(name);
    EXPECT_EQ(user.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(user.status().message()),
                HasSubstr(std::string("--rank-user: got ") + name));
  }
}

TEST(RankUserTest, FilesOfRanksHaveTheirModes) {
  std::string folder = testing::TempDir() + "rank_user_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/program";
  std::ofstream(file) << "1";
  const auto mode = [](const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    return info.st_mode & 07777;
  };
  ASSERT_TRUE(RankFiles().ShareFile(file).ok());
  EXPECT_EQ(mode(file), 0600u);
  if (geteuid() == 0) {
    const RankFiles files(*FindRankUser("nobody"));
    ASSERT_TRUE(files.ShareFile(file).ok() && files.ShareFolder(folder).ok());
    EXPECT_EQ(mode(file), 0640u);
    EXPECT_EQ(mode(folder), 0750u);
    EXPECT_TRUE(CheckPaths({.user = files.user()}, {{file, R_OK, "file"}}).ok());
    EXPECT_FALSE(CheckPaths({.user = files.user()}, {{file, W_OK, "file"}}).ok());
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace terrace
