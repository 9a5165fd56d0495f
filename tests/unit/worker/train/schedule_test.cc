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

TEST(ScheduleTest, TheWarmUpBeginsAtTheInitialRate) {
  v1::StepRules rules = Rules(v1::StepRules::COSINE);
  rules.set_initial_learning_rate(0.5);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 0), 0.55);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 9), 1.0);
}

// OneCycleLR(max_lr=1, total_steps=110, pct_start=10/110, div_factor=25, final_div_factor=0.4) of
// torch.optim.lr_scheduler, PyTorch 2.15.
TEST(ScheduleTest, OneCycleFollowsPyTorch) {
  v1::StepRules rules = Rules(v1::StepRules::ONE_CYCLE);
  rules.set_initial_learning_rate(0.04);
  EXPECT_NEAR(LearningRate(rules, 0), 0.04, 1e-12);
  EXPECT_NEAR(LearningRate(rules, 4), 0.43664887471987335, 1e-12);
  EXPECT_NEAR(LearningRate(rules, 9), 1.0, 1e-12);
  EXPECT_NEAR(LearningRate(rules, 10), 0.9997779521645792, 1e-12);
  EXPECT_NEAR(LearningRate(rules, 60), 0.5358651584148423, 1e-12);
  EXPECT_NEAR(LearningRate(rules, 108), 0.10022204783542077, 1e-12);
  EXPECT_NEAR(LearningRate(rules, 109), 0.1, 1e-12);
}

TEST(ScheduleTest, PolynomialExponentialAndRestartsEndAtTheMinimum) {
  v1::StepRules polynomial = Rules(v1::StepRules::POLYNOMIAL);
  polynomial.set_power(2);
  EXPECT_NEAR(LearningRate(polynomial, 60), 0.1 + 0.9 * 0.25, 1e-12);
  EXPECT_NEAR(LearningRate(polynomial, 110), 0.1, 1e-12);
  const v1::StepRules exponential = Rules(v1::StepRules::EXPONENTIAL);
  EXPECT_NEAR(LearningRate(exponential, 60), std::sqrt(0.1), 1e-12);
  EXPECT_NEAR(LearningRate(exponential, 110), 0.1, 1e-12);
  v1::StepRules restarts = Rules(v1::StepRules::COSINE_RESTARTS);
  restarts.set_cycles(2);
  EXPECT_NEAR(LearningRate(restarts, 35), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(restarts, 60), 1.0, 1e-12);
  EXPECT_NEAR(LearningRate(restarts, 110), 0.1, 1e-12);
}

TEST(ScheduleTest, WsdStaysAtThePeakAndDecaysInItsLastSteps) {
  v1::StepRules rules = Rules(v1::StepRules::WSD);
  rules.set_decay_steps(20);
  const auto half_way = [&](v1::StepRules::Schedule decay) {
    rules.set_decay(decay);
    EXPECT_DOUBLE_EQ(LearningRate(rules, 90), 1.0);
    EXPECT_NEAR(LearningRate(rules, 110), 0.1, 1e-12);
    return (LearningRate(rules, 100) - 0.1) / 0.9;
  };
  EXPECT_NEAR(half_way(v1::StepRules::LINEAR), 0.5, 1e-12);
  EXPECT_NEAR(half_way(v1::StepRules::COSINE), 0.5, 1e-12);
  EXPECT_NEAR(half_way(v1::StepRules::EXPONENTIAL), std::sqrt(2) - 1, 1e-12);
  EXPECT_NEAR(half_way(v1::StepRules::MINUS_SQRT), 1 - std::sqrt(0.5), 1e-12);
}

TEST(ScheduleTest, TheInverseRootFallsFromTheWarmUpOnAndNotBelowTheMinimum) {
  const v1::StepRules rules = Rules(v1::StepRules::INVERSE_SQRT);
  EXPECT_NEAR(LearningRate(rules, 9), 1.0, 1e-12);
  EXPECT_NEAR(LearningRate(rules, 39), 0.5, 1e-12);
  EXPECT_NEAR(LearningRate(rules, 100'000), 0.1, 1e-12);
}

TEST(ScheduleTest, BiasCorrectionsCountStepsFromOne) {
  std::array<float, 4> out;
  FillSchedule(Rules(v1::StepRules::CONSTANT), 1, 64, out);
  EXPECT_FLOAT_EQ(out[1], 1 - 0.9f * 0.9f);
  EXPECT_FLOAT_EQ(out[2], 1 - 0.95f * 0.95f);
  EXPECT_EQ(out[3], 64);
}

TEST(ScheduleTest, AdafactorForgetsEverMoreSlowly) {
  v1::StepRules rules = Rules(v1::StepRules::CONSTANT);
  rules.set_optimizer(v1::ADAFACTOR);
  rules.set_beta2_decay(-0.8);
  std::array<float, 4> schedule;
  FillSchedule(rules, 0, 1, schedule);
  EXPECT_EQ(schedule[2], 1.0f);
  FillSchedule(rules, 31, 1, schedule);
  EXPECT_FLOAT_EQ(schedule[2], 1.0f / 16);
  EXPECT_FLOAT_EQ(schedule[0], 1.0f);
}

TEST(ScheduleTest, ARelativeStepFollowsFromItsNumberAlone) {
  v1::StepRules rules = Rules(v1::StepRules::COSINE);
  rules.set_relative_step(true);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 0), 0.01);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 9999), 0.01);
  EXPECT_DOUBLE_EQ(LearningRate(rules, 39999), 0.005);
}

}  // namespace
}  // namespace terrace
