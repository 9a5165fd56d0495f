// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/same_place.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class SamePlaceTest : public testing::Test {
 protected:
  SamePlaceTest() { fs::create_directories(folder_ + "/runs"); }
  ~SamePlaceTest() override { fs::remove_all(folder_); }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/same_place_test.", getpid());
};

TEST_F(SamePlaceTest, IsSeenThroughLinksAlsoOfFoldersThatAreNotThereYet) {
  fs::create_directory_symlink(folder_ + "/runs", folder_ + "/alias");
  const std::string later = folder_ + "/runs/later/checkpoints";
  const std::string other = folder_ + "/runs/other";
  for (const char* name : {"/alias/later/checkpoints", "/alias/later/checkpoints/",
                           "/runs/../alias/later/checkpoints", "/runs/later/checkpoints"}) {
    EXPECT_EQ(SamePlace(folder_ + name, {other, later}), later) << name;
    EXPECT_EQ(SamePlace(later, {other, folder_ + name}), folder_ + name) << name;
  }
  EXPECT_EQ(SamePlace(folder_ + "/alias/later", {other, later}), "");
  EXPECT_EQ(SamePlace(folder_ + "/alias/none/..", {other, folder_ + "/runs"}), folder_ + "/runs");
}

TEST_F(SamePlaceTest, IsNowhereForJobsWithoutADirectory) {
  EXPECT_EQ(SamePlace("", {folder_}), "");
  EXPECT_EQ(SamePlace(folder_, {}), "");
}

TEST_F(SamePlaceTest, LinksInACircleAreNoPlace) {
  fs::create_directory_symlink(folder_ + "/b", folder_ + "/a");
  fs::create_directory_symlink(folder_ + "/a", folder_ + "/b");
  EXPECT_EQ(SamePlace(folder_ + "/a", {folder_ + "/b"}), "");
  EXPECT_EQ(SamePlace(folder_ + "/a", {folder_ + "/a"}), folder_ + "/a");
}

}  // namespace
}  // namespace terrace
