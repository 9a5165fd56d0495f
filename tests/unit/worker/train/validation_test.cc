// SPDX-License-Identifier: Apache-2.0
#include "worker/train/validation.h"

#include <gtest/gtest.h>

#include <limits>

namespace terrace {
namespace {

v1::StepRules Rules(int64_t evaluations, double improvement = 0) {
  v1::StepRules rules;
  rules.mutable_early_stop()->set_evaluations(evaluations);
  rules.mutable_early_stop()->set_improvement(improvement);
  return rules;
}

TEST(ValidationTest, KnowsTheBestAndEndsAfterSoManyWorse) {
  const v1::StepRules rules = Rules(2);
  Validation validation(rules);
  EXPECT_TRUE(validation.Add(10, 3.0));
  EXPECT_FALSE(validation.Add(20, 3.0)) << "as good is not better";
  EXPECT_FALSE(validation.exhausted());
  EXPECT_TRUE(validation.Add(30, 2.5));
  EXPECT_FALSE(validation.Add(40, 2.6));
  EXPECT_FALSE(validation.exhausted()) << "those before the best do not count";
  EXPECT_FALSE(validation.Add(50, 2.7));
  EXPECT_TRUE(validation.exhausted());
  EXPECT_EQ(validation.state(), (ValidationState{.best_step = 30, .best_loss = 2.5, .worse = 2}));
}

TEST(ValidationTest, AnImprovementMustBeLargeEnough) {
  const v1::StepRules rules = Rules(1, 0.1);
  Validation validation(rules);
  EXPECT_TRUE(validation.Add(1, 3.0));
  EXPECT_FALSE(validation.Add(2, 2.95));
  EXPECT_TRUE(validation.exhausted());
}

TEST(ValidationTest, WhatIsNotFiniteIsNeverTheBest) {
  const v1::StepRules rules = Rules(3);
  Validation validation(rules);
  EXPECT_FALSE(validation.Add(1, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(validation.state().best_step, 0);
  EXPECT_TRUE(validation.Add(2, 5.0));
  EXPECT_FALSE(validation.Add(3, -std::numeric_limits<double>::infinity()));
}

TEST(ValidationTest, WithoutTheRuleNothingEndsIt) {
  const v1::StepRules rules;
  Validation validation(rules);
  EXPECT_TRUE(validation.Add(1, 1.0));
  for (int i = 2; i < 100; ++i) EXPECT_FALSE(validation.Add(i, 2.0));
  EXPECT_FALSE(validation.exhausted());
}

TEST(ValidationTest, GoesOnFromACheckpoint) {
  const v1::StepRules rules = Rules(3);
  Validation validation(rules);
  validation.Resume({.best_step = 5, .best_loss = 2.0, .worse = 2});
  EXPECT_FALSE(validation.exhausted());
  EXPECT_FALSE(validation.Add(6, 2.1));
  EXPECT_TRUE(validation.exhausted());
}

}  // namespace
}  // namespace terrace
