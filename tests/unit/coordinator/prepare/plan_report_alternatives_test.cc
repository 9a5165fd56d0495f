// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/plan_report_alternatives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/text/number_format.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/prepare/prepare.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

v1::JobSpec Spec() {
  v1::JobSpec spec = TinySpec();
  spec.mutable_model()->set_config_json(TinyConfig("gpt2", {.layers = 4}));
  spec.mutable_model()->set_attention("config");
  spec.mutable_train()->set_precision("fp32");
  spec.mutable_train()->set_global_batch(8);
  v1::LayoutSpec* layout = spec.mutable_layout();
  layout->set_pp(2);
  layout->set_micro_batch(2);
  layout->set_recompute("none");
  layout->set_schedule("1f1b");
  return spec;
}

Budget Machine() {
  return {.ranks = 2,
          .threads_per_rank = 2,
          .device_memory_bytes = int64_t{1} << 28,
          .profile = CpuProfile(2)};
}

Evaluated EvaluatedAs(const std::function<void(v1::LayoutSpec*)>& change, const Budget& budget) {
  v1::JobSpec spec = Spec();
  change(spec.mutable_layout());
  const auto prepared = Prepare(spec, Machine());
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  const auto model = ReadModel(spec);
  EXPECT_TRUE(model.ok()) << model.status();
  auto evaluated = Evaluate(spec, *model, budget, prepared->plan.layout());
  EXPECT_TRUE(evaluated.ok()) << evaluated.status();
  return *std::move(evaluated);
}

// Of a plan with the chosen one at 10 s and 100 bytes; nothing more of a plan is read.
v1::Plan PlanWith(std::initializer_list<v1::Alternative> alternatives) {
  v1::Plan plan;
  plan.set_fits(true);
  plan.mutable_time()->set_step_seconds(10);
  v1::StageMemory* memory = plan.add_memory();
  memory->set_tier(v1::DEVICE);
  memory->set_arena_bytes(90);
  memory->set_external_bytes(10);
  for (const v1::Alternative& one : alternatives) *plan.add_alternatives() = one;
  return plan;
}
v1::Alternative Other(double seconds, int64_t bytes, bool fits, bool compiled) {
  v1::Alternative one;
  one.set_step_seconds(seconds);
  one.set_device_bytes(bytes);
  one.set_fits(fits);
  one.set_compiled(compiled);
  return one;
}

TEST(MarkFrontTest, NothingThatFitsIsFasterAndSmallerBeItCompiledOrNot) {
  v1::Plan plan = PlanWith({
      Other(11, 110, true, true),  // the chosen one is both
      Other(12, 60, true, true),   // the next is both, though known by closed form only
      Other(11.5, 50, true, false), Other(13, 40, true, false),
      Other(8, 120, true, true),  // faster and larger
      Other(1, 1, false, true),   // better than all, if it did fit
  });
  MarkFront(&plan);
  std::vector<bool> front;
  for (const v1::Alternative& one : plan.alternatives()) front.push_back(one.pareto());
  EXPECT_EQ(front, std::vector<bool>({false, false, true, true, true, false}));
  plan.set_fits(false);  // then the first has nothing above it but what is faster and smaller
  plan.mutable_alternatives()->DeleteSubrange(1, 4);
  MarkFront(&plan);
  EXPECT_TRUE(plan.alternatives(0).pareto());
}

double Sum(const StepParts& parts) {
  return parts.computation + parts.recompute + parts.optimizer + parts.communication +
         parts.offload + parts.bubble + parts.loading;
}

TEST(WhyNotTest, ThePartsOfAStepSumToIt) {
  const Evaluated plain = EvaluatedAs([](auto*) {}, Machine());
  const StepParts parts = PartsOf(plain.simulation);
  EXPECT_NEAR(Sum(parts), plain.simulation.step_seconds, 1e-9);
  EXPECT_GT(parts.bubble, 0);
  EXPECT_EQ(parts.recompute, 0);
}

TEST(WhyNotTest, ASlowerLayoutSaysByHowMuchAndWhatTakesTheTime) {
  const Budget budget = Machine();
  const Evaluated plain = EvaluatedAs([](auto*) {}, budget);
  const Evaluated recomputed =
      EvaluatedAs([](auto* layout) { layout->set_recompute("block"); }, budget);
  const v1::JobSpec spec = Spec();
  EXPECT_THAT(WhyNot(spec, budget, plain).Of(recomputed),
              AllOf(HasSubstr(" % slower because of "), HasSubstr(" more recompute")));
}

TEST(WhyNotTest, ALongerBubbleIsNamed) {
  const Budget budget = Machine();
  const Evaluated small = EvaluatedAs([](auto* layout) { layout->set_micro_batch(1); }, budget);
  const Evaluated large = EvaluatedAs([](auto* layout) { layout->set_micro_batch(8); }, budget);
  Evaluated slow = large;  // by a bubble of an hour
  slow.simulation.step_seconds += 3600;
  for (SimulatedStage& stage : slow.simulation.stages) stage.bubble_seconds += 3600;
  const v1::JobSpec spec = Spec();
  EXPECT_THAT(WhyNot(spec, budget, small).Of(slow),
              AllOf(HasSubstr("60.0 min more bubble"), Not(HasSubstr(" and "))));
}

TEST(WhyNotTest, WhatDoesNotFitSaysWhereAndByHowMuch) {
  Budget budget = Machine();
  const Evaluated plain = EvaluatedAs([](auto*) {}, budget);
  budget.device_memory_bytes = plain.device_bytes - (1 << 20);
  const Evaluated small = EvaluatedAs([](auto*) {}, budget);
  ASSERT_FALSE(small.fits);
  const v1::JobSpec spec = Spec();
  const std::string words = WhyNot(spec, budget, plain).Of(small);
  EXPECT_THAT(words, StartsWith("does not fit: stage "));
  EXPECT_THAT(words, HasSubstr("needs " + FormatBytes(plain.device_bytes) + " of " +
                               FormatBytes(budget.device_memory_bytes) +
                               " on the device, 1.0 MiB too much"));
}

TEST(WhyNotTest, AHostThatIsTooSmallIsNamedAsTheTier) {
  Budget budget = Machine();
  const auto to_host = [](v1::LayoutSpec* layout) {
    PutOn(v1::HOST, layout->mutable_offload()->mutable_optimizer());
  };
  const Evaluated plain = EvaluatedAs([](auto*) {}, budget);
  Evaluated offloaded = EvaluatedAs(to_host, budget);
  offloaded.fits = false;
  v1::JobSpec spec = Spec();
  spec.mutable_resources()->set_host_memory(4096);
  EXPECT_THAT(WhyNot(spec, budget, plain).Of(offloaded),
              AllOf(HasSubstr(" of 4.0 KiB of host memory, "), HasSubstr(" too much")));
}

TEST(WhyNotTest, AFasterOneSaysWhyItIsLeft) {
  Budget budget = Machine();
  const Evaluated plain = EvaluatedAs([](auto*) {}, budget);
  Evaluated other = plain;
  const v1::JobSpec spec = Spec();
  EXPECT_EQ(WhyNot(spec, budget, plain).Of(other), "as fast");
  other.device_bytes += 3 << 20;
  EXPECT_EQ(WhyNot(spec, budget, plain).Of(other), "as fast, with 3.0 MiB more on the device");
  other.simulation.step_seconds *= 0.94;
  EXPECT_THAT(WhyNot(spec, budget, plain).Of(other),
              AllOf(StartsWith("6.0 % faster"), HasSubstr("a plain layout is kept")));
  budget.profile.set_measured(true);
  EXPECT_THAT(WhyNot(spec, budget, plain).Of(other), HasSubstr("by measured rates"));
}

// In a plan, every layout that is not chosen has its sentence.
TEST(WhyNotTest, NoAlternativeIsWithoutASentence) {
  v1::JobSpec spec = Spec();
  spec.clear_layout();
  spec.mutable_layout()->set_zero(-1);
  spec.mutable_layout()->set_sequence_parallel(-1);
  spec.mutable_layout()->set_tile_bytes(-1);
  const auto prepared = Prepare(spec, Machine());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_GT(prepared->plan.alternatives_size(), 0);
  for (const v1::Alternative& other : prepared->plan.alternatives()) {
    EXPECT_FALSE(other.note().empty());
    EXPECT_FALSE(absl::StrContains(other.note(), '\n')) << other.note();
  }
}

}  // namespace
}  // namespace terrace
