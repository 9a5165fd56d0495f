// SPDX-License-Identifier: Apache-2.0
#include "base/paths/beneath.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using Check = absl::Status (*)(std::string_view, std::span<const std::string>);

// By the kernel, and by names.
class BeneathTest : public testing::TestWithParam<Check> {
 protected:
  BeneathTest() {
    std::string folder = testing::TempDir() + "beneath_XXXXXX";
    folder_ = mkdtemp(folder.data());
    for (const char* name : {"/root", "/root/inside", "/outside", "/roots"})
      fs::create_directory(folder_ + name);
    std::ofstream(folder_ + "/root/inside/text") << "text";
    std::ofstream(folder_ + "/outside/secret") << "secret";
  }
  ~BeneathTest() override { fs::remove_all(folder_); }

  absl::Status Of(const std::string& path) const {
    const std::vector<std::string> roots = {folder_ + "/root"};
    return GetParam()(folder_ + path, roots);
  }
  void Link(const std::string& target, const std::string& name) const {
    fs::create_symlink(target, folder_ + "/root/" + name);
  }
  void ExpectLeadsOut(const std::string& path) const {
    const absl::Status status = Of(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << path << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("leads out of " + folder_ + "/root"));
  }

  std::string folder_;
};

TEST_P(BeneathTest, WhatLiesBelowIsFineWhetherItIsThereOrNot) {
  for (const char* path : {"/root", "/root/", "/root/inside", "/root/inside/text", "/root/absent",
                           "/root/absent/deeper/still", "/root/inside/../inside/text"}) {
    EXPECT_TRUE(Of(path).ok()) << path << ": " << Of(path);
  }
}

TEST_P(BeneathTest, WhatLiesElsewhereIsRefused) {
  for (const char* path : {"/outside/secret", "/roots", "/roots/x", "", "/roo"}) {
    const absl::Status status = Of(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << path;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("lies below none of " + folder_ + "/root"));
  }
}

TEST_P(BeneathTest, LinksLeadNowhereElse) {
  Link("../outside", "up");
  Link("../outside/secret", "file");
  Link("../outside/absent", "dangling");
  Link("inside/../../outside", "around");
  for (const char* path :
       {"/root/up", "/root/up/secret", "/root/up/absent/x", "/root/file", "/root/dangling",
        "/root/around/secret", "/root/../outside/secret", "/root/inside/../../outside"}) {
    ExpectLeadsOut(path);
  }
  Link("inside", "within");
  EXPECT_TRUE(Of("/root/within/text").ok()) << Of("/root/within/text");
  Link("loop", "loop");
  EXPECT_FALSE(Of("/root/loop").ok());
}

TEST_P(BeneathTest, OnlyFilesAndFolders) {
  const std::string fifo = folder_ + "/root/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(Of("/root/fifo").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Of("/root/fifo").message()), HasSubstr("FIFO"));
  EXPECT_FALSE(Of("/root/inside/text/below").ok()) << "a file is no folder";
  const std::vector<std::string> devices = {"/dev"};
  EXPECT_THAT(std::string(GetParam()("/dev/null", devices).message()), HasSubstr("device"));
}

TEST_P(BeneathTest, AnyOfSeveralRootsWillDo) {
  const std::vector<std::string> roots = {folder_ + "/outside", folder_ + "/root"};
  EXPECT_TRUE(GetParam()(folder_ + "/root/inside", roots).ok());
  EXPECT_TRUE(GetParam()(folder_ + "/outside/secret", roots).ok());
  EXPECT_FALSE(GetParam()(folder_ + "/roots", roots).ok());
  EXPECT_FALSE(GetParam()(folder_ + "/root", {}).ok());
  // A root may be a link itself: that is the operator's.
  fs::create_symlink(folder_ + "/root", folder_ + "/alias");
  const std::vector<std::string> alias = {folder_ + "/alias"};
  EXPECT_TRUE(GetParam()(folder_ + "/alias/inside/text", alias).ok());
}

INSTANTIATE_TEST_SUITE_P(Both, BeneathTest, testing::Values(CheckBeneath, CheckBeneathByName));

// A descriptor of this process is no path below a root, although /proc shows it as one.
TEST(BeneathByKernelTest, MagicLinksAreNotFollowed) {
  const std::vector<std::string> roots = {"/proc/self"};
  const absl::Status status = CheckBeneath("/proc/self/cwd", roots);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
}

}  // namespace
}  // namespace terrace
