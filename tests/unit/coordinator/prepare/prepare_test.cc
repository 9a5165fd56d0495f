// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/hardware/gpu_profile.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/check/program_check.h"
#include "proto/program/program_hash.h"
#include "tests/unit/coordinator/prepare_specs.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
    budget.profile = WhatIfProfile(gpu);
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

// ---- layouts

TEST(PrepareTest, AJobThatFitsIsPlainlyDataParallel) {
  const auto prepared = Prepare(Open(Spec("llama")), MakeBudget(int64_t{1} << 30, 4));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const v1::Layout& layout = prepared->plan.layout();
  EXPECT_EQ(layout.data_parallel(), 4u);
  EXPECT_EQ(layout.zero_stage(), 0u);
  EXPECT_EQ(layout.recompute(), "none");
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

TEST(PrepareTest, WhatTheConfigAsksForAndDoesNotGetIsPartOfThePlan) {
  v1::JobSpec spec = Spec("gpt2");
  std::string config = spec.model().config_json();
  spec.mutable_model()->set_config_json(
      config.insert(config.find('{') + 1, R"("n_ctx": 7, )"));
  const auto prepared = Prepare(spec, MakeBudget());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(prepared->plan.remarks(), ElementsAre(HasSubstr("n_ctx: got 7")));
}

// The published config drops, which is a remark of its own.
void DropNothing(v1::JobSpec* spec) {
  spec->mutable_model()->mutable_dropout()->set_embedding(0);
  spec->mutable_model()->mutable_dropout()->set_residual(0);
  spec->mutable_model()->mutable_dropout()->set_attention(0);
}

TEST(PrepareTest, APlanSaysWhereAFormatOfFrozenWeightsHasNoEffect) {
  v1::JobSpec spec = Gpt2("bf16", 1);
  DropNothing(&spec);
  spec.mutable_formats()->set_frozen("nf4");
  v1::ParameterGroup* group = spec.mutable_train()->mutable_optimizer()->add_groups();
  group->set_frozen(true);
  for (const char* match : {"*wpe*", "*.h.*.weight"}) {
    group->set_match(match);
    const auto prepared = Prepare(spec, MakeBudget(0, 1));
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    const bool tables = std::string(match) == "*wpe*";
    EXPECT_EQ(prepared->plan.layout().frozen_format(), tables ? "" : "nf4");
    EXPECT_EQ(prepared->plan.remarks_size(), tables ? 1 : 0);
    if (tables) {
      EXPECT_THAT(prepared->plan.remarks(0),
                  HasSubstr("formats.frozen: nf4 has no effect: train.optimizer.groups freezes no "
                            "matrix of a layer"));
    }
  }
}

TEST(PrepareTest, APlanSaysWhereGathersInEightBitsHaveNoEffectOrOnSomeMatricesAlone) {
  v1::JobSpec spec = Gpt2("bf16", 2);
  DropNothing(&spec);
  spec.mutable_layout()->set_zero(3);
  spec.mutable_formats()->set_gather("int8");
  const auto plan_of = [&spec] {
    const auto prepared = Prepare(spec, MakeBudget(0, 2));
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return prepared.ok() ? prepared->plan : v1::Plan();
  };
  const v1::Plan all = plan_of();
  EXPECT_EQ(all.layout().gather_format(), "int8");
  EXPECT_THAT(all.remarks(), IsEmpty());
  v1::PrecisionRule* rule = spec.mutable_train()->add_precision_rules();
  rule->set_where("first 1");
  rule->set_precision("fp32");
  EXPECT_THAT(plan_of().remarks(),
              ElementsAre("formats.gather: matrices of products in fp32 (train.precision.layers) "
                          "travel in int8 too"));
  spec.mutable_train()->clear_precision_rules();
  spec.mutable_layout()->set_persistent_parameters(100'000'000);
  const v1::Plan none = plan_of();
  EXPECT_EQ(none.layout().gather_format(), "");
  EXPECT_THAT(none.remarks(), ElementsAre(HasSubstr("formats.gather: int8 has no effect")));
  spec.mutable_layout()->set_persistent_parameters(-1);
  spec.mutable_layout()->set_tile_bytes(int64_t{1} << 20);
  const v1::Plan some = plan_of();
  EXPECT_EQ(some.layout().gather_format(), "int8");
  ASSERT_EQ(some.remarks_size(), 1);
  EXPECT_THAT(some.remarks(0), ContainsRegex("[1-9][0-9]? % of the elements"));
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
