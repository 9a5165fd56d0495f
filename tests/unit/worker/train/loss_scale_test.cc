// SPDX-License-Identifier: Apache-2.0
#include "worker/train/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>

namespace terrace {
namespace {

v1::StepRules Dynamic(double initial, int64_t window, int64_t hysteresis, double min) {
  v1::StepRules rules;
  rules.mutable_loss_scale()->set_initial(initial);
  rules.mutable_loss_scale()->set_window(window);
  rules.mutable_loss_scale()->set_hysteresis(hysteresis);
  rules.mutable_loss_scale()->set_min(min);
  rules.mutable_loss_scale()->set_tokens(1);
  return rules;
}

void Update(LossScale* scale, int times, bool skipped) {
  for (int i = 0; i < times; ++i) scale->Update(skipped);
}

// Megatron-LM's DynamicGradScaler and DeepSpeed's DynamicLossScaler, written down once more: the
// same scale after every step of any course of events.
class Published {
 public:
  Published(double scale, int64_t window, int64_t hysteresis, double min)
      : scale_(scale), window_(window), hysteresis_(hysteresis), left_(hysteresis), min_(min) {}
  double Step(bool overflow) {
    if (overflow) {
      growth_ = 0;
      if (--left_ <= 0) scale_ = std::fmax(scale_ * 0.5, min_);
    } else if (++growth_ == window_) {
      growth_ = 0;
      left_ = hysteresis_;
      scale_ *= 2;
    }
    return scale_;
  }

 private:
  double scale_;
  const int64_t window_, hysteresis_;
  int64_t left_;
  const double min_;
  int64_t growth_ = 0;
};

TEST(LossScaleTest, FollowsThePublishedScalersThroughAnyCourseOfEvents) {
  uint32_t random = 12345;
  for (const int64_t hysteresis : {1, 2, 5}) {
    const v1::StepRules rules = Dynamic(65536, 7, hysteresis, 4);
    LossScale scale(rules);
    Published published(65536, 7, hysteresis, 4);
    for (int step = 0; step < 2000; ++step) {
      random = random * 1664525 + 1013904223;
      const bool overflow = random >> 24 < (step / 100 % 2 == 0 ? 10u : 90u);
      scale.Update(overflow);
      ASSERT_EQ(scale.state().scale, published.Step(overflow)) << step;
    }
  }
}

TEST(LossScaleTest, TheScheduleLeavesSkippedStepsOut) {
  const v1::StepRules rules = Dynamic(8, 100, 1, 1);
  LossScale scale(rules);
  Update(&scale, 2, true);
  Update(&scale, 3, false);
  EXPECT_EQ(scale.Scheduled(5), 3);
  const v1::StepRules none;
  LossScale unscaled(none);
  unscaled.Update(true);
  EXPECT_EQ(unscaled.Scheduled(5), 5);
  EXPECT_EQ(unscaled.state().skipped, 1);
  EXPECT_EQ(unscaled.Factor(), 1);
}

TEST(LossScaleTest, AnOverflowAtTheSmallestScaleHelpsNoMore) {
  const v1::StepRules rules = Dynamic(4, 100, 2, 1);
  LossScale scale(rules);
  Update(&scale, 3, true);  // 4, 2, 1
  EXPECT_EQ(scale.state().scale, 1);
  EXPECT_FALSE(scale.exhausted());
  scale.Update(false);
  scale.Update(true);
  EXPECT_TRUE(scale.exhausted());
  EXPECT_EQ(scale.state().scale, 1);
}

TEST(LossScaleTest, TheFactorIsThatOfAMeanOverTheTokensOfASequence) {
  v1::StepRules rules = Dynamic(65536, 100, 2, 1);
  rules.mutable_loss_scale()->set_tokens(1000);
  EXPECT_EQ(LossScale(rules).Factor(), 65536.0f / 512);
}

TEST(LossScaleTest, AFixedScaleStaysAndOutlivesACheckpointOfAnother) {
  v1::StepRules rules;
  rules.mutable_loss_scale()->set_initial(128);
  rules.mutable_loss_scale()->set_tokens(1);
  LossScale scale(rules);
  Update(&scale, 20, true);
  EXPECT_EQ(scale.state().scale, 128);
  EXPECT_FALSE(scale.exhausted());
  scale.Resume({.scale = 4, .good_steps = 3, .hysteresis = 1, .skipped = 9});
  EXPECT_EQ(scale.state().scale, 128);
  EXPECT_EQ(scale.state().skipped, 9);
}

TEST(LossScaleTest, GoesOnFromACheckpointToTheStep) {
  const v1::StepRules rules = Dynamic(64, 5, 2, 1);
  LossScale whole(rules), first(rules), second(rules);
  Update(&whole, 1, true);
  Update(&whole, 3, false);
  Update(&first, 1, true);
  Update(&first, 3, false);
  second.Resume(first.state());
  for (LossScale* scale : {&whole, &second}) {
    Update(scale, 2, false);
    EXPECT_EQ(scale->state().scale, 128);
  }
  EXPECT_EQ(whole.state(), second.state());
  LossScale fresh(rules);
  fresh.Resume({});  // a checkpoint of a bf16 job
  EXPECT_EQ(fresh.state().scale, 64);
}

TEST(LossScaleTest, DoesNotGrowForEver) {
  const v1::StepRules rules = Dynamic(65536, 1, 2, 1);
  LossScale scale(rules);
  Update(&scale, 5000, false);
  EXPECT_TRUE(std::isfinite(scale.Factor()));
}

}  // namespace
}  // namespace terrace
