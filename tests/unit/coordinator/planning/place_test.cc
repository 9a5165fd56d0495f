// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/place.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class PlaceTest : public testing::Test {
 protected:
  PlaceTest() { fs::create_directories(folder_ + "/runs"); }
  ~PlaceTest() override { fs::remove_all(folder_); }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/place_test.", getpid());
};

TEST_F(PlaceTest, IsSeenThroughLinksAlsoOfFoldersThatAreNotThereYet) {
  fs::create_directory_symlink(folder_ + "/runs", folder_ + "/alias");
  const std::string later = PlaceOf(folder_ + "/runs/later/checkpoints");
  ASSERT_NE(later, "");
  for (const char* name : {"/alias/later/checkpoints", "/alias/later/checkpoints/",
                           "/runs/../alias/later/checkpoints", "/runs/later/checkpoints/"}) {
    EXPECT_EQ(PlaceOf(folder_ + name), later) << name;
  }
  EXPECT_NE(PlaceOf(folder_ + "/alias/later"), later);
  EXPECT_NE(PlaceOf(folder_ + "/runs/other"), later);
  EXPECT_EQ(PlaceOf(folder_ + "/alias/none/.."), PlaceOf(folder_ + "/runs"));
}

TEST_F(PlaceTest, IsNowhereForJobsWithoutADirectory) {
  EXPECT_EQ(PlaceOf(""), "");
  EXPECT_EQ(PlaceOf("checkpoints"), "");
}

TEST_F(PlaceTest, LinksInACircleAreNoPlace) {
  fs::create_directory_symlink(folder_ + "/b", folder_ + "/a");
  fs::create_directory_symlink(folder_ + "/a", folder_ + "/b");
  EXPECT_EQ(PlaceOf(folder_ + "/a"), "");
}

}  // namespace
}  // namespace terrace
