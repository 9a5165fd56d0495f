// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/host_share.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

class HostShareTest : public testing::Test {
 protected:
  HostShareTest() {
    folder_ = (std::filesystem::temp_directory_path() / "terrace-share-XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/host_memory";
  }
  ~HostShareTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_, path_;
};

TEST_F(HostShareTest, EachRankIsLeftWhatTheEarlierOnesDoNotTake) {
  const HostLimits free = {.available_bytes = 1000,
                           .group = {.free_bytes = 900, .limit_bytes = 2000, .file = "memory.max"}};
  const auto first = TakeHostShare(path_, 400, free);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->available_bytes, 1000);
  EXPECT_EQ(first->taken_bytes, 0);
  // By now the first has reserved a part: what is free now is not what the sum is held to.
  const auto second = TakeHostShare(path_, 450, {.available_bytes = 700, .group = free.group});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->available_bytes, 600);
  EXPECT_EQ(second->group.free_bytes, 500);
  EXPECT_EQ(second->group.limit_bytes, 2000);
  EXPECT_EQ(second->taken_bytes, 400);
  const auto third = TakeHostShare(path_, 1, free);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->group.free_bytes, 50);
  EXPECT_EQ(TakeHostShare(path_, 1, free)->group.free_bytes, 49);
}

TEST_F(HostShareTest, WhatHasNoLimitKeepsNone) {
  ASSERT_TRUE(TakeHostShare(path_, 400, {}).ok());
  const auto second = TakeHostShare(path_, 400, {});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->available_bytes, kNoLimit);
  EXPECT_EQ(second->group.free_bytes, kNoLimit);
}

TEST_F(HostShareTest, RanksThatComeAtOnceAreAllCounted) {
  constexpr int kRanks = 8;
  std::vector<std::thread> ranks;
  std::atomic<int> fit{0};
  for (int i = 0; i < kRanks; ++i) {
    ranks.emplace_back([&] {
      const auto left = TakeHostShare(path_, 100, {.available_bytes = 350});
      if (left.ok() && left->available_bytes >= 100) ++fit;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(fit, 3);
}

TEST_F(HostShareTest, AFileThatIsNotOursIsRefused) {
  std::ofstream(path_) << "hello\n";
  EXPECT_EQ(TakeHostShare(path_, 1, {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace terrace
