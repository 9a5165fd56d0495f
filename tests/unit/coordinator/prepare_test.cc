// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "coordinator/model/presets.h"
#include "coordinator/planner/gpu_profile.h"
#include "coordinator/planner/profiles.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/program_check.h"
#include "proto/program_hash.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

v1::JobSpec Spec(const std::string& family = "gpt2", const std::string& precision = "fp32") {
  v1::JobSpec spec = TinySpec();
  spec.mutable_model()->set_config_json(TinyConfig(family));
  spec.mutable_model()->set_attention("config");
  spec.mutable_train()->set_precision(precision);
  spec.mutable_train()->set_global_batch(8);
  return spec;
}

// A model large enough that what is in the arenas matters beside what is not.
v1::JobSpec Gpt2(const std::string& precision, uint32_t micro_batch) {
  v1::JobSpec spec = Spec();
  spec.mutable_model()->set_config_json(std::string(FindPreset("gpt2")->config_json));
  spec.mutable_data()->set_sequence_length(256);
  spec.mutable_train()->set_precision(precision);
  spec.mutable_layout()->set_micro_batch(micro_batch);
  spec.mutable_layout()->set_recompute("none");
  return spec;
}

// The host has no memory to offer.
v1::JobSpec Alone(v1::JobSpec spec) {
  spec.mutable_resources()->set_host_memory(int64_t{1} << 20);
  return spec;
}

// Nothing pinned.
v1::JobSpec Open(v1::JobSpec spec) {
  spec.clear_layout();
  spec.mutable_layout()->set_zero(-1);
  spec.mutable_layout()->set_sequence_parallel(-1);
  return spec;
}

Budget MakeBudget(int64_t device_memory_bytes = 0, uint32_t ranks = 1) {
  return {.ranks = ranks,
          .threads_per_rank = 2,
          .device_memory_bytes = device_memory_bytes,
          .profile = CpuProfile(2)};
}

int64_t DeviceBytes(const v1::Program& program) {
  return program.arenas(0).bytes() + program.external_bytes();
}

// Of the largest stage.
int64_t DeviceBytes(const Prepared& prepared) {
  int64_t bytes = 0;
  for (const v1::Program& program : prepared.programs) {
    bytes = std::max(bytes, DeviceBytes(program));
  }
  return bytes;
}

// Of the smallest layout on one rank that keeps precision and sequence length.
int64_t LeastBytes(const std::string& precision) {
  int64_t least = INT64_MAX;
  for (const char* recompute : {"none", "selective", "block", "sqrt"}) {
    v1::JobSpec spec = Gpt2(precision, 1);
    spec.mutable_layout()->set_recompute(recompute);
    const auto prepared = Prepare(spec, MakeBudget());
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    if (prepared.ok()) least = std::min(least, DeviceBytes(*prepared));
  }
  return least;
}

std::string Refusal(const v1::JobSpec& spec, const Budget& budget, absl::StatusCode code) {
  const auto prepared = Prepare(spec, budget);
  EXPECT_EQ(prepared.status().code(), code) << prepared.status();
  return std::string(prepared.status().message());
}

TEST(PrepareTest, ThePlanIsThatOfItsPrograms) {
  for (const std::string& family : Families()) {
    SCOPED_TRACE(family);
    const auto prepared = Prepare(Spec(family, "bf16"), MakeBudget(int64_t{1} << 30, 2));
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    const v1::Plan& plan = prepared->plan;
    ASSERT_EQ(prepared->programs.size(), 1u);
    const v1::Program& program = prepared->programs[0];
    EXPECT_TRUE(CheckPrograms(prepared->programs).ok());
    EXPECT_EQ(plan.program_sha256(0), Sha256Hex(SerializeProgram(program)));
    EXPECT_EQ(plan.instructions(), static_cast<uint32_t>(program.sequences(0).instructions_size()));
    EXPECT_EQ(plan.memory(0).arena_bytes(), program.arenas(0).bytes());
    EXPECT_EQ(plan.memory(0).limit_bytes(), int64_t{1} << 30);
    EXPECT_EQ(program.device_limit_bytes(), int64_t{1} << 30);
    EXPECT_EQ(plan.layout().data_parallel(), 2u);
    EXPECT_EQ(program.rules().tokens_per_step(), 8 * 12);
    EXPECT_GT(plan.time().step_seconds(), 0);
    EXPECT_GT(plan.time().mfu(), 0);
    EXPECT_LE(plan.time().mfu(), 1);
    EXPECT_NE(plan.binding_constraint(), "");
    const Model model = TinyModel(family);
    EXPECT_EQ(plan.model().parameters(), model.Parameters());
    EXPECT_EQ(plan.checkpoint_bytes(), 3 * 4 * model.Parameters());
  }
}

TEST(PrepareTest, TheLinesOfMemorySumToArenaAndExternalExactly) {
  for (const char* precision : {"fp32", "bf16"}) {
    const auto prepared = Prepare(Gpt2(precision, 0), MakeBudget(int64_t{16} << 30));
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    const v1::StageMemory& memory = prepared->plan.memory(0);
    int64_t sum = 0;
    for (const v1::MemoryLine& line : memory.lines()) {
      EXPECT_GT(line.bytes(), 0);
      sum += line.bytes();
    }
    EXPECT_EQ(sum, memory.arena_bytes() + memory.external_bytes());
    EXPECT_LE(memory.arena_bytes(), memory.lower_bound_bytes() * 1.01);
  }
}

TEST(PrepareTest, TheSameInputGivesTheSameBytes) {
  const auto first = Prepare(Spec("qwen3"), MakeBudget());
  const auto second = Prepare(Spec("qwen3"), MakeBudget());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->plan.SerializeAsString(), second->plan.SerializeAsString());
  EXPECT_EQ(SerializeProgram(first->programs[0]), SerializeProgram(second->programs[0]));
}

// Or a job that is run again would get another layout, and other sums.
TEST(PrepareTest, MeasuredRatesTellTheTimeAndChooseNothing) {
  const auto with_rates = [](double flops, double overhead) {
    Budget budget = MakeBudget();
    budget.profile.set_measured(true);
    budget.profile.set_f32_flops_per_second(flops);
    budget.profile.set_instruction_overhead_seconds(overhead);
    return Prepare(Spec(), budget);
  };
  const auto fast = with_rates(1e12, 1e-3), slow = with_rates(1e9, 1e-9);
  ASSERT_TRUE(fast.ok() && slow.ok());
  EXPECT_EQ(SerializeProgram(fast->programs[0]), SerializeProgram(slow->programs[0]));
  EXPECT_NE(fast->plan.time().step_seconds(), slow->plan.time().step_seconds());
  EXPECT_EQ(fast->plan.profile().f32_flops_per_second(), 1e12);
}

TEST(PrepareTest, RatesMeasuredOnAGpuTellTheTimeAndThoseOfTheCatalogueChoose) {
  const auto with_rates = [](bool measured, double flops) {
    Budget budget = MakeBudget();
    budget.device = "cuda";
    const GpuKind gpu = {
        .name = "NVIDIA H100 80GB HBM3", .memory_bytes = int64_t{80} << 30, .per_node = 1};
    budget.profile = PaperProfile(gpu);
    if (!measured) return Prepare(Spec("llama", "bf16"), budget);
    budget.profile.set_measured(true);
    budget.profile.set_device("cuda");
    budget.profile.set_name(gpu.name);
    for (v1::KernelRate& rate : *budget.profile.mutable_kernels()) rate.set_flops_per_second(flops);
    return Prepare(Spec("llama", "bf16"), budget);
  };
  const auto paper = with_rates(false, 0), fast = with_rates(true, 1e15),
             slow = with_rates(true, 1e6);
  ASSERT_TRUE(paper.ok() && fast.ok() && slow.ok()) << paper.status() << fast.status();
  EXPECT_EQ(SerializeProgram(fast->programs[0]), SerializeProgram(paper->programs[0]));
  EXPECT_EQ(SerializeProgram(slow->programs[0]), SerializeProgram(paper->programs[0]));
  EXPECT_LT(fast->plan.time().step_seconds(), slow->plan.time().step_seconds());
  EXPECT_EQ(fast->plan.profile().name(), "NVIDIA H100 80GB HBM3");
}

TEST(PrepareTest, WithoutAMeasuredProfileTheDefaultIsUsedAndSaidSo) {
  Budget budget = MakeBudget();
  budget.profile.Clear();
  const auto prepared = Prepare(Spec(), budget);
  ASSERT_TRUE(prepared.ok());
  EXPECT_EQ(prepared->plan.profile().name(), "cpu, 2 cores");
}

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
  const v1::JobSpec spec = Gpt2("fp32", 4);
  const auto prepared = Prepare(spec, MakeBudget());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->plan.memory(0).paged_bytes(), 0);
  const int64_t limit = DeviceBytes(prepared->programs[0]) - 1;
  const auto paged = Prepare(spec, MakeBudget(limit));
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
  EXPECT_TRUE(Prepare(Open(Gpt2("bf16", 1)), budget).ok());
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

// ---- layouts
// -------------------------------------------------------------------------------------

TEST(PrepareTest, AJobThatFitsIsPlainlyDataParallel) {
  const auto prepared = Prepare(Open(Spec("llama")), MakeBudget(int64_t{1} << 30, 4));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const v1::Layout& layout = prepared->plan.layout();
  EXPECT_EQ(layout.data_parallel(), 4u);
  EXPECT_EQ(layout.zero_stage(), 0u);
  EXPECT_EQ(layout.recompute(), "none");
}

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

TEST(PrepareTest, APlanHasAProgramAndItsMemoryForEachStage) {
  v1::JobSpec spec = Open(Spec("llama"));
  spec.mutable_layout()->set_tp(2);
  spec.mutable_layout()->set_pp(2);
  spec.mutable_layout()->set_zero(1);
  const auto prepared = Prepare(spec, MakeBudget(int64_t{1} << 30, 8));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const v1::Plan& plan = prepared->plan;
  EXPECT_EQ(plan.layout().data_parallel(), 2u);
  ASSERT_EQ(prepared->programs.size(), 2u);
  ASSERT_EQ(plan.memory_size(), 2);
  ASSERT_EQ(plan.program_sha256_size(), 2);
  uint32_t instructions = 0;
  for (int stage = 0; stage < 2; ++stage) {
    const v1::Program& program = prepared->programs[stage];
    EXPECT_EQ(program.stage(), static_cast<uint32_t>(stage));
    EXPECT_EQ(plan.program_sha256(stage), Sha256Hex(SerializeProgram(program)));
    EXPECT_EQ(plan.memory(stage).stage(), static_cast<uint32_t>(stage));
    EXPECT_EQ(plan.memory(stage).arena_bytes(), program.arenas(0).bytes());
    instructions += program.sequences(0).instructions_size();
    int64_t sum = 0;
    for (const v1::MemoryLine& line : plan.memory(stage).lines()) sum += line.bytes();
    EXPECT_EQ(sum, plan.memory(stage).arena_bytes() + plan.memory(stage).external_bytes());
  }
  EXPECT_EQ(plan.instructions(), instructions);
  EXPECT_EQ(plan.checkpoint_bytes(), 3 * 4 * TinyModel("llama").Parameters());
  EXPECT_LE(plan.time().mfu(), 1);
}

TEST(PrepareTest, MoreRanksThanDevicesAreRefused) {
  v1::JobSpec spec = Open(Spec("llama"));
  spec.mutable_layout()->set_tp(2);
  spec.mutable_layout()->set_pp(2);
  EXPECT_THAT(Refusal(spec, MakeBudget(0, 2), absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("tp 2 x pp 2 = 4 ranks"), HasSubstr("resources")));
}

TEST(PrepareTest, LayoutsThatDoNotDivideAreRefused) {
  v1::JobSpec spec = Open(Spec("llama"));
  spec.mutable_layout()->set_tp(3);
  EXPECT_THAT(Refusal(spec, MakeBudget(0, 3), absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("layout.tp: got 3"), HasSubstr("try 2 or 4")));
}

// ---- the model
// -------------------------------------------------------------------------------------------------

int64_t WindowOf(const v1::Program& program) {
  for (const v1::Instruction& instruction : program.sequences(0).instructions()) {
    if (instruction.compute().op() == "attention")
      return instruction.compute().attention().window();
  }
  return -1;
}

TEST(PrepareTest, AttentionOverridesTheConfigsWindows) {
  v1::JobSpec spec = Spec("mistral");
  EXPECT_EQ(WindowOf(Prepare(spec, MakeBudget())->programs[0]), 5);
  spec.mutable_model()->set_attention("full");
  EXPECT_EQ(WindowOf(Prepare(spec, MakeBudget())->programs[0]), 0);
  spec.mutable_model()->set_attention("sliding_window");
  EXPECT_EQ(WindowOf(Prepare(spec, MakeBudget())->programs[0]), 5);
}

TEST(PrepareTest, AWindowThatTheModelLacksIsRefused) {
  v1::JobSpec spec = Spec("gpt2");
  spec.mutable_model()->set_attention("sliding_window");
  EXPECT_THAT(Refusal(spec, MakeBudget(), absl::StatusCode::kInvalidArgument),
              HasSubstr("model.attention"));
}

TEST(PrepareTest, AConfigThatCannotBeReadIsRefused) {
  v1::JobSpec spec = Spec();
  spec.mutable_model()->set_config_json("{");
  Refusal(spec, MakeBudget(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace
