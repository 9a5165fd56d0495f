// SPDX-License-Identifier: Apache-2.0
#include "worker/train/schedule.h"

#include <array>
#include <cmath>

#include "gtest/gtest.h"

namespace terrace {
namespace {

v1::StepRules Rules(v1::StepRules::Schedule schedule) {
  v1::StepRules rules;
  rules.set_steps(110);
  rules.set_learning_rate(1.0);
  rules.set_min_learning_rate(0.1);
  rules.set_warmup_steps(10);
  rules.set_schedule(schedule);
  rules.set_beta1(0.9);
  rules.set_beta2(0.95);
  return rules;
}

TEST(ScheduleTest, WarmUpRisesLinearlyAndReachesThePeak) {
  const v1::StepRules rules = Rules(v1::StepRules::COSINE);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 0), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 4), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 9), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 10), 1.0);
}

TEST(ScheduleTest, CosineIsHalfWayAtTheMiddleAndEndsAtTheMinimum) {
  const v1::StepRules rules = Rules(v1::StepRules::COSINE);
  EXPECT_NEAR(LearningRate(rules, 60), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(rules, 35), 0.1 + 0.45 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(LearningRate(rules, 110), 0.1, 1e-12);
}

TEST(ScheduleTest, LinearFallsEvenlyAndConstantDoesNot) {
  EXPECT_NEAR(LearningRate(Rules(v1::StepRules::LINEAR), 35), 0.775, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate(Rules(v1::StepRules::CONSTANT), 109), 1.0);
}

TEST(ScheduleTest, WithoutWarmUpTheFirstStepHasThePeak) {
  v1::StepRules rules = Rules(v1::StepRules::COSINE);
  rules.set_warmup_steps(0);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 0), 1.0);
}

TEST(ScheduleTest, BiasCorrectionsCountStepsFromOne) {
  std::array<float, 4> out;
  FillSchedule(Rules(v1::StepRules::CONSTANT), 1, 64, out);
  EXPECT_FLOAT_EQ(out[1], 1 - 0.9f * 0.9f);
  EXPECT_FLOAT_EQ(out[2], 1 - 0.95f * 0.95f);
  EXPECT_EQ(out[3], 64);
}

}  // namespace
}  // namespace terrace
