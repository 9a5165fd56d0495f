// SPDX-License-Identifier: Apache-2.0
#include "client/local_cluster.h"

#include <gmock/gmock.h>
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

TEST(LocalClusterTest, OneNodeTakesTheDevicesThatTheSpecAsksFor) {
  EXPECT_EQ(*DeviceOfLocalWorkers(1, ""), "auto");
  EXPECT_EQ(*DeviceOfLocalWorkers(1, "cpu"), "cpu");
  EXPECT_EQ(*DeviceOfLocalWorkers(1, "cuda"), "cuda");
}

TEST(LocalClusterTest, NodesOfOneMachineDoNotTakeTheSameGpus) {
  EXPECT_EQ(*DeviceOfLocalWorkers(2, ""), "cpu");
  EXPECT_EQ(*DeviceOfLocalWorkers(2, "auto"), "cpu");
  const auto refused = DeviceOfLocalWorkers(2, "cuda");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()),
              testing::AllOf(testing::HasSubstr("resources.device: cuda with 2 nodes"),
                             testing::HasSubstr("terrace submit")));
}

}  // namespace
}  // namespace terrace
