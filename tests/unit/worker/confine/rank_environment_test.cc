// SPDX-License-Identifier: Apache-2.0
#include "worker/confine/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(RankEnvironmentTest, OnlyWhatIsListedPasses) {
  const char* const environment[] = {"PATH=/bin",          "AWS_SECRET_ACCESS_KEY=1",
                                     "NCCL_DEBUG=INFO",    "NCCL=1",
                                     "CUDA_HOME=/a=b",     "LC_ALL=C",
                                     "TERRACE_TOKEN=s",    "PATHS=1",
                                     "HF_TOKEN=hf_secret", nullptr};
  EXPECT_THAT(PassedEnvironment(environment, {}),
              ElementsAre("PATH=/bin", "NCCL_DEBUG=INFO", "CUDA_HOME=/a=b", "LC_ALL=C"));
}

TEST(RankEnvironmentTest, WhatIsAskedForPassesByItsWholeName) {
  const char* const environment[] = {"HF_HOME=/hf", "HF_HOME_TOKEN=s", "HF=1", nullptr};
  const std::vector<std::string> also = {"HF_HOME"};
  EXPECT_THAT(PassedEnvironment(environment, also), ElementsAre("HF_HOME=/hf"));
  EXPECT_THAT(PassedEnvironment(environment + 1, also), IsEmpty());
}

// A pattern that takes everything of a vendor must end at a word: "NCCL_*", not "NC*".
TEST(RankEnvironmentTest, PatternsEndAtAWord) {
  for (const PassedVariable& row : PassedVariables()) {
    EXPECT_FALSE(row.why.empty()) << row.name;
    EXPECT_TRUE(!row.name.ends_with('*') || row.name.ends_with("_*")) << row.name;
  }
}

}  // namespace
}  // namespace terrace
