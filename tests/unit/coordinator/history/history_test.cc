// SPDX-License-Identifier: Apache-2.0
#include "coordinator/history/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace terrace {
namespace {

using testing::ElementsAre;

v1::JobEvent Step(int64_t step, double loss, int64_t sequence = 0) {
  v1::JobEvent event;
  event.set_sequence(sequence == 0 ? step : sequence);
  event.set_unix_ms(1000 * step);
  event.mutable_step()->set_step(step);
  event.mutable_step()->set_loss(loss);
  event.mutable_step()->set_tokens_per_second(100);
  return event;
}

v1::GetMemoryResponse Memory(std::vector<int64_t> parameter_bytes) {
  v1::GetMemoryResponse memory;
  for (const int64_t bytes : parameter_bytes) {
    v1::TierMemory& tier = *memory.add_ranks()->add_tiers();
    tier.set_tier(v1::DEVICE);
    tier.set_reserved_bytes(100);
    v1::LiveClass& live = *tier.add_live();
    live.set_class_(v1::PARAMETER);
    live.set_bytes(bytes);
  }
  return memory;
}

TEST(HistoryTest, ShortJobsAreKeptStepByStep) {
  History history;
  for (int step = 1; step <= 3; ++step) history.Add(Step(step, 10 - step));
  const v1::JobHistory message = history.Message();
  EXPECT_THAT(message.steps().step(), ElementsAre(1, 2, 3));
  EXPECT_THAT(message.steps().loss(), ElementsAre(9, 8, 7));
  EXPECT_EQ(message.last_sequence(), 3);
}

TEST(HistoryTest, OldStepsAreThinnedAndTheirExtremesStay) {
  History history;
  constexpr int64_t kSteps = 100'000;
  for (int64_t step = 1; step <= kSteps; ++step) history.Add(Step(step, step == 77 ? 1000 : 1));
  const v1::JobHistory message = history.Message();
  const v1::StepColumns& steps = message.steps();
  EXPECT_LT(steps.step_size(), 3000);
  EXPECT_LT(message.ByteSizeLong(), 200u << 10);
  int64_t counted = 0;
  for (int i = 0; i < steps.step_size(); ++i) {
    counted += steps.steps(i);
    EXPECT_EQ(steps.step(i), counted) << "points follow each other without a gap";
    if (i > 0) {
      EXPECT_LE(steps.steps(i), steps.steps(i - 1)) << "the older, the coarser";
    }
  }
  EXPECT_EQ(counted, kSteps);
  EXPECT_EQ(*std::max_element(steps.loss_max().begin(), steps.loss_max().end()), 1000);
  for (int i = steps.step_size() - 256; i < steps.step_size(); ++i) EXPECT_EQ(steps.steps(i), 1);
}

TEST(HistoryTest, StepsThatAreToldAgainTakeTheOldOnesPlace) {
  History history;
  for (int step = 1; step <= 5; ++step) history.Add(Step(step, 1));
  history.Add(Step(3, 2, 6));  // from the checkpoint of step 2
  history.Add(Step(4, 2, 7));
  history.Add(Step(4, 9, 7));  // known already
  EXPECT_THAT(history.Message().steps().step(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(history.Message().steps().loss(), ElementsAre(1, 1, 2, 2));
}

TEST(HistoryTest, TheRankThatHoldsMostCounts) {
  History history;
  history.AddMemory(1, Memory({5, 7}));
  history.AddMemory(2, Memory({6, 3}));
  history.AddMemory(3, {});  // nobody has reported yet
  const v1::MemoryColumns memory = history.Message().memory();
  EXPECT_THAT(memory.unix_ms(), ElementsAre(1, 2));
  ASSERT_EQ(memory.columns_size(), 2);
  EXPECT_EQ(memory.columns(0).class_(), v1::BUFFER_CLASS_UNSPECIFIED);
  EXPECT_THAT(memory.columns(0).bytes(), ElementsAre(100, 100));
  EXPECT_EQ(memory.columns(1).class_(), v1::PARAMETER);
  EXPECT_THAT(memory.columns(1).bytes(), ElementsAre(7, 6));
}

TEST(HistoryTest, WhatIsReadBackGoesOn) {
  History before;
  for (int64_t step = 1; step <= 1000; ++step) before.Add(Step(step, step == 9 ? NAN : 1));
  before.AddMemory(1, Memory({5}));
  History after(before.Message());
  EXPECT_EQ(after.Message().SerializeAsString(), before.Message().SerializeAsString());
  before.Add(Step(1001, 1));
  after.Add(Step(1001, 1));
  EXPECT_EQ(after.Message().SerializeAsString(), before.Message().SerializeAsString());
}

TEST(HistoryTest, ADamagedMessageLosesPointsOnly) {
  History history;
  for (int step = 1; step <= 3; ++step) history.Add(Step(step, 1));
  history.AddMemory(1, Memory({5}));
  v1::JobHistory message = history.Message();
  message.mutable_steps()->mutable_loss()->RemoveLast();
  message.mutable_memory()->mutable_columns(1)->clear_bytes();
  const v1::JobHistory read = History(message).Message();
  EXPECT_THAT(read.steps().step(), ElementsAre(1, 2));
  EXPECT_EQ(read.memory().columns_size(), 1);
}

}  // namespace
}  // namespace terrace
