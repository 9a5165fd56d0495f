// SPDX-License-Identifier: Apache-2.0
#include "client/local_cluster.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace terrace {
namespace {

TEST(LocalClusterTest, OldStateFoldersArePruned) {
  const std::string base = testing::TempDir() + "/xdg_state";
  std::filesystem::remove_all(base);
  setenv("XDG_STATE_HOME", base.c_str(), 1);
  for (int i = 0; i < 14; ++i) {
    std::filesystem::create_directories(base + "/terrace/run-" + std::to_string(1000 + i) + "-1");
  }
  std::filesystem::create_directories(base + "/terrace/something-else");
  const auto fresh = FreshStateDirectory();
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_TRUE(std::filesystem::is_directory(*fresh));
  EXPECT_FALSE(std::filesystem::exists(base + "/terrace/run-1004-1"));
  EXPECT_TRUE(std::filesystem::exists(base + "/terrace/run-1005-1"));
  EXPECT_TRUE(std::filesystem::exists(base + "/terrace/something-else"));
}

}  // namespace
}  // namespace terrace
