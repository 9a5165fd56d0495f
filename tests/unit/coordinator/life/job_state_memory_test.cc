// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/hardware/budget.h"
#include "coordinator/life/job_state.h"
#include "tests/unit/coordinator/life/job_state_jobs.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

RankView RanOut(uint32_t rank, int64_t external_mib) {
  RankView view = Reported(rank, v1::RANK_FAILED, v1::REASON_OUT_OF_MEMORY, "out of memory");
  view.report.mutable_memory()->set_external_bytes(external_mib * kMiB);
  view.report.mutable_memory()->set_external_allowed_bytes(96 * kMiB);
  return view;
}

Adjusted Smaller() {
  Adjusted adjusted;
  adjusted.change = "layout.micro_batch 2 instead of 4";
  adjusted.plan.mutable_layout()->set_micro_batch(2);
  return adjusted;
}

TEST(JobStateTest, ARankThatHeldMoreThanItsPlanWaitsForASmallerLayout) {
  v1::Job running = JobIn(v1::RUNNING);
  running.mutable_progress()->set_checkpoint_step(20);
  const RanksObserved observed{
      {Reported(0, v1::RANK_FAILED, v1::REASON_RANK_DIED), RanOut(2, 112)}};
  const auto transition = Apply(running, observed, kNow);
  ASSERT_TRUE(transition.ok());
  const v1::Job& job = transition->job;
  EXPECT_EQ(job.state(), v1::RECOVERING);
  EXPECT_EQ(job.reason(), v1::REASON_OUT_OF_MEMORY) << "the other rank fails for want of this one";
  EXPECT_TRUE(NeedsSmallerLayout(job));
  EXPECT_EQ(job.learned_external_bytes(), 128 * kMiB) << "an eighth of it is margin";
  EXPECT_EQ(transition->learned_on, "w1");
  EXPECT_EQ(job.restarts(), 1);
  EXPECT_EQ(job.restarts_without_progress(), 0) << "a fallback is not held against max_restarts";
  EXPECT_THAT(job.message(), HasSubstr("from the checkpoint of step 20"));
  EXPECT_FALSE(Apply(job, observed, kNow)->changed) << "it is still reported";

  const v1::Job adjusted = Next(job, Smaller());
  EXPECT_EQ(adjusted.state(), v1::RECOVERING);
  EXPECT_FALSE(NeedsSmallerLayout(adjusted));
  EXPECT_EQ(adjusted.plan().layout().micro_batch(), 2u);
  ASSERT_EQ(adjusted.adjustments_size(), 1);
  EXPECT_EQ(adjusted.adjustments(0).step(), 20);
  EXPECT_EQ(adjusted.adjustments(0).unix_ms(), kNow + 1);
  EXPECT_EQ(adjusted.adjustments(0).cause(), "rank 2 on w1: out of memory");
  EXPECT_EQ(adjusted.adjustments(0).change(), "layout.micro_batch 2 instead of 4");
  EXPECT_EQ(adjusted.adjustments(0).layout().micro_batch(), 2u);
  EXPECT_FALSE(Apply(adjusted, observed, kNow)->changed) << "a late report of the old epoch";
}

TEST(JobStateTest, TheLadderIsNotHeldAgainstMaxRestarts) {
  v1::Job job = JobIn(v1::RUNNING);
  job.mutable_spec()->set_max_restarts(0);
  EXPECT_TRUE(NeedsSmallerLayout(Next(job, RanksObserved{{RanOut(0, 200)}})));
}

TEST(JobStateTest, AtTheBottomOfTheLadderTheJobFailsWithBothSentences) {
  const v1::Job waits = Next(JobIn(v1::RUNNING), RanksObserved{{RanOut(0, 200)}});
  const v1::Job job = Next(waits, Refused{v1::REASON_OUT_OF_MEMORY, "nothing smaller fits"});
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_OUT_OF_MEMORY);
  EXPECT_EQ(job.message(), "rank 0 on w0: out of memory; nothing smaller fits");
  EXPECT_EQ(job.adjustments_size(), 0);
  EXPECT_EQ(job.learned_external_bytes(), LearnedFrom(200 * kMiB));
}

TEST(JobStateTest, ARankWithinItsPlanGetsTheSameLayoutOnce) {
  const v1::Job first = Next(JobIn(v1::RUNNING), RanksObserved{{RanOut(0, 90)}});
  EXPECT_EQ(first.state(), v1::RECOVERING);
  EXPECT_EQ(first.reason(), v1::REASON_OUT_OF_MEMORY);
  EXPECT_FALSE(NeedsSmallerLayout(first));
  EXPECT_EQ(first.restarts_without_progress(), 1) << "an ordinary restart";
  EXPECT_EQ(first.learned_external_bytes(), 0);
  v1::Job again = first;
  again.set_state(v1::RUNNING);
  again = Next(again, RanksObserved{{RanOut(0, 90)}});
  EXPECT_TRUE(NeedsSmallerLayout(again));
  EXPECT_EQ(again.learned_external_bytes(), 0) << "it needs no more outside than it was given";
}

TEST(JobStateTest, WhatWasLearnedNeverShrinks) {
  v1::Job job = JobIn(v1::RUNNING);
  job.set_learned_external_bytes(500 * kMiB);
  const auto transition = Apply(job, RanksObserved{{RanOut(0, 200)}}, kNow);
  EXPECT_EQ(transition->job.learned_external_bytes(), 500 * kMiB);
  EXPECT_EQ(transition->learned_on, "");
}

// Its peers lose their connections first and may be heard first.
TEST(JobStateTest, ARankHeardAfterItsPeersTurnsTheirRestartIntoItsOwn) {
  const v1::Job peers =
      Next(JobIn(v1::RUNNING), RanksObserved{{Reported(0, v1::RANK_FAILED, v1::REASON_RANK_DIED)}});
  ASSERT_EQ(peers.restarts_without_progress(), 1);
  const v1::Job job = Next(peers, RanksObserved{{RanOut(2, 200)}});
  EXPECT_TRUE(NeedsSmallerLayout(job));
  EXPECT_EQ(job.restarts(), 1) << "one restart, not two";
  ASSERT_EQ(job.last_restarts_size(), 1);
  EXPECT_EQ(job.last_restarts(0).reason(), v1::REASON_OUT_OF_MEMORY);
  EXPECT_EQ(job.restarts_without_progress(), 0);
}

TEST(JobStateTest, AJobToBeCancelledDoesNotGoDown) {
  v1::Job job = JobIn(v1::RUNNING);
  job.set_cancel_requested(true);
  EXPECT_EQ(Next(job, RanksObserved{{RanOut(0, 200)}}).state(), v1::CANCELLED);
  const v1::Job waits = Next(JobIn(v1::RUNNING), RanksObserved{{RanOut(0, 200)}});
  EXPECT_EQ(Next(waits, CancelAsked{}).state(), v1::CANCELLED);
}

}  // namespace
}  // namespace terrace
