// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/model/presets.h"
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

TEST(PrepareTest, WithoutAMeasuredProfileTheDefaultIsUsedAndSaidSo) {
  Budget budget = MakeBudget();
  budget.profile.Clear();
  const auto prepared = Prepare(Spec(), budget);
  ASSERT_TRUE(prepared.ok());
  EXPECT_EQ(prepared->plan.profile().name(), "cpu, 2 cores");
}

TEST(PrepareTest, TheBudgetIsMetToTheByte) {
  const v1::JobSpec spec = Gpt2("fp32", 4);
  const auto prepared = Prepare(spec, MakeBudget());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const int64_t bytes = DeviceBytes(prepared->programs[0]);
  EXPECT_TRUE(Prepare(spec, MakeBudget(bytes)).ok());
  EXPECT_THAT(Refusal(spec, MakeBudget(bytes - 1), absl::StatusCode::kResourceExhausted),
              HasSubstr("(" + std::to_string(bytes) + " bytes)"));
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

TEST(PrepareTest, ThenPrecisionWhereItSavesEnough) {
  const auto bf16 = Prepare(Gpt2("bf16", 8), MakeBudget());
  const auto fp32 = Prepare(Gpt2("fp32", 1), MakeBudget());
  ASSERT_TRUE(bf16.ok() && fp32.ok());
  // With micro_batch 1 in fp32 just too large, bf16 with micro_batch 1 is what is left.
  const Budget budget = MakeBudget(DeviceBytes(fp32->programs[0]) - 1);
  const std::string message =
      Refusal(Gpt2("fp32", 8), budget, absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(message, HasSubstr("the cheapest change that fits: train.precision bf16"));
  v1::JobSpec changed =
      Gpt2("bf16", message.find("layout.micro_batch 1") != std::string::npos ? 1 : 8);
  EXPECT_TRUE(Prepare(changed, budget).ok()) << message;
}

TEST(PrepareTest, ThenAShorterSequence) {
  const auto small = Prepare(Gpt2("bf16", 1), MakeBudget());
  ASSERT_TRUE(small.ok());
  const Budget budget = MakeBudget(DeviceBytes(small->programs[0]) - 1);
  EXPECT_THAT(Refusal(Gpt2("bf16", 1), budget, absl::StatusCode::kResourceExhausted),
              HasSubstr("the cheapest change that fits: data.sequence_length 128"));
}

TEST(PrepareTest, WhereNothingHelpsTheMemoryItTakesIsNamed) {
  EXPECT_THAT(
      Refusal(Gpt2("bf16", 1), MakeBudget(int64_t{1} << 30), absl::StatusCode::kResourceExhausted),
      AllOf(HasSubstr("of 1.0 GiB per rank"),
            HasSubstr("no smaller micro_batch, precision or sequence_length fits"),
            HasSubstr("MiB")));
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
