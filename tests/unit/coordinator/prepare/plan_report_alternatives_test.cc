// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/plan_report_alternatives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

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
