// SPDX-License-Identifier: Apache-2.0
#include "base/nearest.h"

#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

const std::vector<std::string_view> kWords = {"warmup_steps", "min_lr", "name", "steps"};

TEST(NearestTest, FindsTyposAndSwappedLetters) {
  EXPECT_EQ(Nearest("warmup_step", kWords), "warmup_steps");
  EXPECT_EQ(Nearest("naem", kWords), "name");
  EXPECT_EQ(Nearest("Steps", kWords), "steps");
}

TEST(NearestTest, FarWordsHaveNoNeighbour) {
  EXPECT_EQ(Nearest("optimizer", kWords), "");
  EXPECT_EQ(Nearest("", {"ab"}), "");
  EXPECT_EQ(Nearest(std::string(100000, 'a'), kWords), "");
}

}  // namespace
}  // namespace terrace
