// SPDX-License-Identifier: Apache-2.0
#include "base/paths/same_access.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace terrace {
namespace {

class SameAccessTest : public testing::Test {
 protected:
  SameAccessTest() {
    std::string folder = testing::TempDir() + "same_access_XXXXXX";
    folder_ = mkdtemp(folder.data());
    std::ofstream(Source()) << "text";
  }
  ~SameAccessTest() override { std::filesystem::remove_all(folder_); }

  std::string Source() const { return folder_ + "/source"; }
  std::string Cache() const { return folder_ + "/cache"; }
  static struct stat Of(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    return info;
  }
  static unsigned Mode(const std::string& path) { return Of(path).st_mode & 07777; }
  unsigned ModeMade(mode_t source) {
    EXPECT_EQ(chmod(Source().c_str(), source), 0);
    EXPECT_TRUE(CreateWithAccessOf(Source(), Cache()).ok());
    return Mode(Cache());
  }

  std::string folder_;
};

TEST_F(SameAccessTest, TheModeIsTheSourcesWhateverTheUmaskIs) {
  const mode_t before = umask(0077);
  EXPECT_EQ(ModeMade(0644), 0644u);
  umask(0);
  EXPECT_EQ(ModeMade(0600), 0600u);
  EXPECT_EQ(ModeMade(0640), 0640u);
  EXPECT_EQ(ModeMade(0444), 0644u) << "its writer writes it";
  EXPECT_EQ(ModeMade(0755), 0644u) << "it is no program";
  umask(before);
}

TEST_F(SameAccessTest, RootGivesTheOwner) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may give files away";
  ASSERT_EQ(chown(Source().c_str(), 4711, 4712), 0);
  EXPECT_EQ(ModeMade(0640), 0640u);
  EXPECT_EQ(Of(Cache()).st_uid, 4711u);
  EXPECT_EQ(Of(Cache()).st_gid, 4712u);
}

// A user who reads by the group's or by everybody's leave cannot have the group.
TEST_F(SameAccessTest, AnotherGroupGetsWhatOthersHave) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may make files of foreign groups";
  ASSERT_EQ(chown(Source().c_str(), 4711, 4712), 0);
  chmod(folder_.c_str(), 0777);
  for (const auto& [source, expected] : {std::pair{0664u, 0644u}, {0666u, 0666u}, {0604u, 0604u}}) {
    ASSERT_EQ(chmod(Source().c_str(), source), 0);
    std::filesystem::remove(Cache());
    ASSERT_EQ(setegid(4713), 0);
    ASSERT_EQ(seteuid(4713), 0);
    EXPECT_TRUE(CreateWithAccessOf(Source(), Cache()).ok());
    ASSERT_EQ(seteuid(0), 0);
    ASSERT_EQ(setegid(0), 0);
    EXPECT_EQ(Of(Cache()).st_uid, 4713u);
    EXPECT_EQ(Mode(Cache()), expected) << std::oct << source;
  }
}

TEST_F(SameAccessTest, WhatIsClosedLaterClosesTheCache) {
  EXPECT_EQ(ModeMade(0644), 0644u);
  ASSERT_EQ(chmod(Source().c_str(), 0600), 0);
  LimitAccessTo(Source(), Cache());
  EXPECT_EQ(Mode(Cache()), 0600u);
  ASSERT_EQ(chmod(Source().c_str(), 0644), 0);
  LimitAccessTo(Source(), Cache());
  EXPECT_EQ(Mode(Cache()), 0600u) << "nobody asked to open it";
  LimitAccessTo(Source(), folder_ + "/absent");
}

}  // namespace
}  // namespace terrace
