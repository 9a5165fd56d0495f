// SPDX-License-Identifier: Apache-2.0
#include "client/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using testing::HasSubstr;

std::string Refusal(const std::vector<std::string>& sweeps) {
  return std::string(SweepOf(sweeps, 0).status().message());
}

TEST(SweepTest, EveryCombinationIsAJobAndTheLastKeyChangesFirst) {
  const auto jobs = SweepOf({"train.optimizer.lr=1e-4, 3e-4", "train.seed=1,2,3"}, 2);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 6u);
  EXPECT_EQ(ValuesText((*jobs)[0]), "train.optimizer.lr=1e-4, train.seed=1");
  EXPECT_EQ(ValuesText((*jobs)[1]), "train.optimizer.lr=1e-4, train.seed=2");
  EXPECT_EQ(ValuesText((*jobs)[5]), "train.optimizer.lr=3e-4, train.seed=3");
  EXPECT_EQ((*jobs)[5].index(), 5u);
  EXPECT_EQ((*jobs)[5].size(), 6u);
  EXPECT_EQ((*jobs)[5].running_max(), 2u);
}

TEST(SweepTest, CommasInListsAndQuotesAreNoSeparators) {
  const auto jobs = SweepOf({"train.optimizer.betas=[0.9, 0.95],[0.9, 0.999]"}, 0);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ((*jobs)[1].values(0).value(), "[0.9, 0.999]");
  const auto quoted = SweepOf({"name=\"a,b\",'c=d,e'"}, 0);
  ASSERT_TRUE(quoted.ok()) << quoted.status();
  EXPECT_EQ((*quoted)[1].values(0).value(), "'c=d,e'");
}

TEST(SweepTest, WhatIsNoSweepIsRefused) {
  for (const char* text : {"train.seed", "=1,2", "train.seed=", "train.seed=1,,2"})
    EXPECT_THAT(Refusal({text}), HasSubstr("must be a key of the spec and its values")) << text;
  EXPECT_THAT(Refusal({"train.seed=1,2,1"}), HasSubstr("values that differ; 1 comes twice"));
  EXPECT_THAT(Refusal({"train.seed=1,2", "train.seed=3"}), HasSubstr("given once"));
  std::string many = "train.seed=0";
  for (int i = 1; i < 40; ++i) absl::StrAppend(&many, ",", i);
  std::string rates = "train.optimizer.lr=0";
  for (int i = 1; i < 30; ++i) absl::StrAppend(&rates, ",", i);
  EXPECT_THAT(Refusal({many, rates}), HasSubstr("more than 1000 jobs"));
}

}  // namespace
}  // namespace terrace
