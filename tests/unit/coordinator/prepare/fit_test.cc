// What Prepare chooses where memory is short, and what it names where nothing fits.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/prepare/prepare.h"
#include "tests/unit/coordinator/prepare_specs.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(PrepareTest, TheBudgetIsMetToTheByte) {
  v1::JobSpec spec = Gpt2("fp32", 4);
  spec.mutable_layout()->set_packing("contiguous");
  const auto prepared = Prepare(spec, MakeBudget());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const int64_t bytes = DeviceBytes(prepared->programs[0]);
  EXPECT_TRUE(Prepare(spec, MakeBudget(bytes)).ok());
  EXPECT_THAT(Refusal(spec, MakeBudget(bytes - 1), absl::StatusCode::kResourceExhausted),
              AllOf(HasSubstr("(" + std::to_string(bytes) + " bytes)"),
                    HasSubstr("the cheapest change that fits: layout.packing auto")));
}

TEST(PrepareTest, WhatDoesNotFitInOnePieceEachGetsPagesAndSaysSo) {
  v1::JobSpec spec = Spec("gpt2", "bf16");
  spec.mutable_resources()->set_devices_per_node(2);
  spec.mutable_layout()->set_dp(2);
  spec.mutable_layout()->set_zero(1);
  spec.mutable_layout()->set_micro_batch(2);
  spec.mutable_layout()->set_recompute("none");
  spec.mutable_layout()->set_packing("contiguous");
  const auto contiguous = Prepare(spec, MakeBudget(0, 2));
  ASSERT_TRUE(contiguous.ok()) << contiguous.status();
  EXPECT_EQ(contiguous->plan.memory(0).paged_bytes(), 0);
  const int64_t limit = DeviceBytes(contiguous->programs[0]) - 1;
  Refusal(spec, MakeBudget(limit, 2), absl::StatusCode::kResourceExhausted);
  spec.mutable_layout()->set_packing("auto");
  const auto paged = Prepare(spec, MakeBudget(limit, 2));
  ASSERT_TRUE(paged.ok()) << paged.status();
  EXPECT_LE(DeviceBytes(paged->programs[0]), limit);
  EXPECT_GT(paged->plan.memory(0).paged_bytes(), 0);
}

TEST(PrepareTest, ALayoutThatIsOpenShrinksUntilItFits) {
  const auto roomy = Prepare(Gpt2("fp32", 8), MakeBudget());
  const auto tight = Prepare(Gpt2("fp32", 2), MakeBudget());
  ASSERT_TRUE(roomy.ok() && tight.ok());
  const int64_t limit = DeviceBytes(tight->programs[0]);
  ASSERT_LT(limit, DeviceBytes(roomy->programs[0]));
  const auto chosen = Prepare(Gpt2("fp32", 0), MakeBudget(limit));
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_LE(chosen->plan.layout().micro_batch(), 2u);
  EXPECT_LE(DeviceBytes(chosen->programs[0]), limit);
  EXPECT_GT(chosen->plan.alternatives_size(), 0);
}

// Memory that buys less than two percent of time is not taken.
TEST(PrepareTest, OfLayoutsAsFastTheSmallestIsChosen) {
  const auto prepared = Prepare(Gpt2("fp32", 0), MakeBudget());
  ASSERT_TRUE(prepared.ok());
  for (const v1::Alternative& other : prepared->plan.alternatives()) {
    const bool as_fast = other.step_seconds() <= prepared->plan.time().step_seconds();
    if (as_fast) {
      EXPECT_GE(other.arena_bytes(), prepared->plan.memory(0).arena_bytes());
    }
    EXPECT_LE(prepared->plan.time().step_seconds(), other.step_seconds() * 1.02);
  }
}

// ---- what would fit
// -------------------------------------------------------------------------------------------------

TEST(PrepareTest, ASmallerMicroBatchIsTheCheapestChange) {
  const auto small = Prepare(Gpt2("fp32", 1), MakeBudget());
  ASSERT_TRUE(small.ok());
  const Budget budget = MakeBudget(DeviceBytes(small->programs[0]));
  EXPECT_THAT(Refusal(Gpt2("fp32", 8), budget, absl::StatusCode::kResourceExhausted),
              AllOf(HasSubstr("the cheapest change that fits: layout.micro_batch 1 ("),
                    Not(HasSubstr("bf16")), HasSubstr("resources.device_memory of at least")));
}

TEST(PrepareTest, ThenRecompute) {
  const auto small = Prepare(Gpt2("fp32", 1), MakeBudget());
  ASSERT_TRUE(small.ok());
  const Budget budget = MakeBudget(DeviceBytes(*small) - 1);
  const std::string message =
      Refusal(Gpt2("fp32", 8), budget, absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(message, AllOf(HasSubstr("the cheapest change that fits: layout.recompute "),
                             Not(HasSubstr("bf16"))));
}

TEST(PrepareTest, ThenZeroWhereOtherRanksCanHoldPartOfTheStates) {
  v1::JobSpec spec = Gpt2("fp32", 1);
  spec.mutable_layout()->set_zero(0);
  spec.mutable_layout()->set_dp(4);
  const Budget budget = MakeBudget(LeastBytes("fp32") * 3 / 4, 4);
  EXPECT_THAT(Refusal(spec, budget, absl::StatusCode::kResourceExhausted),
              AllOf(HasSubstr("the cheapest change that fits: "), HasSubstr("layout.zero "),
                    Not(HasSubstr("layout.tp")), Not(HasSubstr("bf16"))));
}

TEST(PrepareTest, ThenOtherDegrees) {
  v1::JobSpec spec = Gpt2("fp32", 1);
  spec.mutable_layout()->set_dp(1);
  spec.mutable_layout()->set_tp(1);
  spec.mutable_layout()->set_pp(1);
  spec.mutable_layout()->set_cp(4);
  spec.mutable_layout()->set_zero(0);
  // What one rank holds of the states with all ways of sharing them.
  v1::JobSpec sharing = Gpt2("fp32", 1);
  sharing.mutable_layout()->set_tp(4);
  const auto prepared = Prepare(sharing, MakeBudget(0, 4));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const std::string message =
      Refusal(spec, MakeBudget(DeviceBytes(*prepared), 4), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(message, AllOf(HasSubstr("the cheapest change that fits: layout."),
                             Not(HasSubstr("bf16")), Not(HasSubstr("sequence_length"))));
}

TEST(PrepareTest, ThenPrecisionWhereItSavesEnough) {
  const Budget budget = MakeBudget(LeastBytes("fp32") - 1);
  EXPECT_THAT(Refusal(Alone(Gpt2("fp32", 8)), budget, absl::StatusCode::kResourceExhausted),
              HasSubstr("the cheapest change that fits: train.precision bf16"));
  const auto open = Prepare(Open(Gpt2("bf16", 1)), budget);
  EXPECT_TRUE(open.ok()) << open.status();
}

TEST(PrepareTest, ThenAShorterSequence) {
  const Budget budget = MakeBudget(LeastBytes("bf16") / 1000 * 997);  // less than its buffers
  EXPECT_THAT(Refusal(Alone(Gpt2("bf16", 1)), budget, absl::StatusCode::kResourceExhausted),
              HasSubstr("the cheapest change that fits: data.sequence_length 128"));
}

TEST(PrepareTest, WhereNothingHelpsTheMemoryItTakesIsNamed) {
  EXPECT_THAT(Refusal(Alone(Gpt2("bf16", 1)), MakeBudget(int64_t{1} << 30),
                      absl::StatusCode::kResourceExhausted),
              AllOf(HasSubstr("of 1.0 GiB per rank"),
                    HasSubstr("no layout, precision or sequence_length fits"), HasSubstr("MiB")));
}

// ---- layouts that are open

TEST(PrepareTest, AnOpenLayoutRecomputesRatherThanFail) {
  const v1::JobSpec open = Open(Gpt2("fp32", 1));
  const auto plain = Prepare(Gpt2("fp32", 1), MakeBudget());
  ASSERT_TRUE(plain.ok());
  const Budget budget = MakeBudget(DeviceBytes(*plain) - 1);
  const auto prepared = Prepare(open, budget);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_NE(prepared->plan.layout().recompute(), "none");
  EXPECT_LE(DeviceBytes(*prepared), budget.device_memory_bytes);
}

TEST(PrepareTest, AnOpenLayoutSharesTheStatesRatherThanFail) {
  const Budget budget = MakeBudget(LeastBytes("fp32") / 2, 4);
  const auto prepared = Prepare(Open(Gpt2("fp32", 1)), budget);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const v1::Layout& layout = prepared->plan.layout();
  EXPECT_TRUE(layout.zero_stage() > 0 || layout.data_parallel() < 4u) << layout.ShortDebugString();
  EXPECT_LE(DeviceBytes(*prepared), budget.device_memory_bytes);
}

}  // namespace
}  // namespace terrace
