// What an evaluation says is what plans say: sizes on both sides of their edge, rows by their
// settings, and what is missing where time ends.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/evaluation/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "coordinator/evaluation/techniques.h"
#include "coordinator/prepare/prepare.h"
#include "proto/report/evaluation_words.h"
#include "tests/unit/coordinator/prepare_specs.h"

namespace terrace {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ResultOf;

v1::JobSpec Job() { return Open(Gpt2("bf16", 1)); }

v1::Evaluation Evaluated(const v1::JobSpec& spec, const Budget& budget, bool brief = true) {
  auto evaluation = EvaluateJob(spec, budget, {.brief = brief, .goes_on = {}, .tell = {}});
  EXPECT_TRUE(evaluation.ok()) << evaluation.status();
  return evaluation.ok() ? *evaluation : v1::Evaluation();
}

const v1::EvaluatedRow& Row(const v1::Evaluation& evaluation, std::string_view name) {
  for (const v1::EvaluatedRow& row : evaluation.techniques()) {
    if (RowName(row) == name) return row;
  }
  ADD_FAILURE() << "no row " << name;
  return evaluation.none();
}

template <typename Settings>
v1::JobSpec With(v1::JobSpec spec, const Settings& settings) {
  for (const v1::SpecSetting& one : settings) EXPECT_TRUE(Apply({one.key(), one.value()}, &spec));
  return spec;
}

TEST(EvaluationTest, RowsAreWhatPlansOfTheirSettingsSay) {
  const Budget budget = MakeBudget(int64_t{3} << 30);
  const v1::Evaluation evaluation = Evaluated(Job(), budget);
  for (const char* name : {"recompute block", "offload to host optimizer"}) {
    const v1::EvaluatedRow& row = Row(evaluation, name);
    const auto plan = PrepareAnyway(With(Job(), row.settings()), budget);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(row.device_bytes(), DeviceBytes(*plan)) << name;
    EXPECT_EQ(row.time().step_seconds(), plan->plan.time().step_seconds()) << name;
    EXPECT_EQ(row.fits(), plan->refusal.ok()) << name;
    EXPECT_LT(row.memory_ratio(), 1) << name;
  }
  EXPECT_GT(Row(evaluation, "recompute block").time_ratio(), 1);
  EXPECT_GT(Row(evaluation, "offload to host optimizer").host_bytes(), 0);
  EXPECT_EQ(Row(evaluation, "recompute full").meaning(), "Only the input of all layers is kept.");
}

TEST(EvaluationTest, PrecisionsOfSingleModulesAreNamed) {
  v1::JobSpec job = Job();
  v1::PrecisionRule* rule = job.mutable_train()->add_precision_rules();
  rule->set_where("lm_head");
  rule->set_precision("fp32");
  EXPECT_EQ(Evaluated(job, MakeBudget(int64_t{3} << 30)).precision(), "bf16 (lm_head fp32)");
}

TEST(EvaluationTest, SizesFitAndTheNextDoNot) {
  const Budget budget = MakeBudget(int64_t{3} << 30);
  const v1::Evaluation evaluation = Evaluated(Job(), budget);
  ASSERT_TRUE(evaluation.complete());
  for (const v1::EvaluatedRow* row : {&evaluation.none(), &evaluation.planned()}) {
    const v1::JobSpec base = With(Job(), row->settings());
    const v1::LargestSize& size = row->micro_batch();
    ASSERT_GT(size.value(), 1) << row->name();
    EXPECT_EQ(size.refused(), size.value() + 1) << row->name();
    v1::JobSpec spec = With(base, size.settings());
    EXPECT_EQ(spec.layout().micro_batch(), size.value());
    EXPECT_TRUE(Prepare(spec, budget).ok()) << row->name();
    spec.mutable_layout()->set_micro_batch(static_cast<uint32_t>(size.refused()));
    spec.mutable_train()->set_global_batch((8 + size.refused() - 1) / size.refused() *
                                           size.refused());
    EXPECT_TRUE(absl::IsResourceExhausted(Prepare(spec, budget).status())) << row->name();
    EXPECT_THAT(size.reason(), HasSubstr("of 3.0 GiB"));
    // gpt2 has learned positions: no longer sequence can be, and at micro-batch 1 it fits.
    EXPECT_EQ(row->sequence_length().value(), 1024) << row->name();
    EXPECT_THAT(row->sequence_length().reason(), HasSubstr("1024 positions"));
  }
  EXPECT_GT(evaluation.planned().micro_batch().value(), evaluation.none().micro_batch().value());
}

TEST(EvaluationTest, WhatCannotBeSaysWhy) {
  const v1::Evaluation evaluation = Evaluated(Job(), MakeBudget(int64_t{3} << 30));
  EXPECT_THAT(Row(evaluation, "tensor parallel 2 ranks").impossible(),
              HasSubstr("must be at most the 1 that resources give"));
  EXPECT_THAT(Row(evaluation, "ZeRO stage 3").impossible(), HasSubstr("nobody to share with"));
  const std::vector<NotPossible> left_out = ImpossibleRows(evaluation);
  const auto names = [](const NotPossible& one) { return one.names; };
  EXPECT_THAT(left_out, Contains(ResultOf(names, ElementsAre("tensor parallel"))));
  EXPECT_THAT(left_out, Contains(ResultOf(names, ElementsAre("number formats bf16"))));
  EXPECT_THAT(Row(evaluation, "number formats bf16").impossible(), HasSubstr("has it already"));
}

TEST(EvaluationTest, SeveralRanksShare) {
  const v1::Evaluation evaluation = Evaluated(Job(), MakeBudget(int64_t{3} << 30, 2));
  // Ranks that share the tokens have half as many batches in a step: they accumulate, and hold the
  // gradients meanwhile.
  EXPECT_EQ(Row(evaluation, "context parallel 2 ranks").impossible(), "");
  for (const char* name :
       {"ZeRO stage 1", "ZeRO stage 3", "tensor parallel 2 ranks", "pipeline parallel 2 stages"}) {
    const v1::EvaluatedRow& row = Row(evaluation, name);
    EXPECT_EQ(row.impossible(), "") << name;
    EXPECT_LT(row.device_bytes(), evaluation.none().device_bytes()) << name;
  }
  EXPECT_LT(Row(evaluation, "ZeRO stage 3").state_bytes_per_parameter(),
            0.75 * evaluation.none().state_bytes_per_parameter());
}

TEST(EvaluationTest, AJobThatFitsNowhereIsStillEvaluated) {
  const Budget budget = MakeBudget(int64_t{200} << 20);
  const v1::Evaluation evaluation = Evaluated(Alone(Job()), budget);
  EXPECT_FALSE(evaluation.none().fits());
  EXPECT_FALSE(evaluation.planned().fits());
  EXPECT_THAT(evaluation.advice(), HasSubstr("resources.device_memory of at least"));
  EXPECT_GT(evaluation.none().time().step_seconds(), 0);
  EXPECT_EQ(evaluation.planned().micro_batch().value(), 0);
  EXPECT_EQ(evaluation.planned().micro_batch().refused(), 1);
  EXPECT_THAT(Findings(evaluation)[1], HasSubstr("no plan fits"));
}

TEST(EvaluationTest, ABatchThatRanksDoNotDivideIsMadeSo) {
  v1::JobSpec spec = Job();
  spec.mutable_train()->set_global_batch(7);
  spec.mutable_layout()->set_pp(2);  // so that it can be planned
  const v1::Evaluation evaluation = Evaluated(spec, MakeBudget(int64_t{3} << 30, 2));
  EXPECT_EQ(evaluation.global_batch(), 8);
  EXPECT_EQ(evaluation.none().layout().data_parallel(), 2);
  EXPECT_THAT(evaluation.remarks(0), HasSubstr("layout.pp"));
  EXPECT_THAT(evaluation.remarks(1), HasSubstr("train.global_batch 8 instead of 7"));
}

TEST(EvaluationTest, EndsWhereItIsToldTo) {
  int plans = 0, told = 0;
  const auto evaluation = EvaluateJob(Job(), MakeBudget(int64_t{3} << 30),
                                      {.brief = false,
                                       .goes_on = [&] { return ++plans <= 4; },
                                       .tell =
                                           [&](const v1::EvaluationProgress& progress) {
                                             ++told;
                                             EXPECT_LT(progress.done(), progress.of());
                                             EXPECT_NE(progress.words(), "");
                                           }});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_FALSE(evaluation->complete());
  EXPECT_EQ(evaluation->plans(), 5);
  EXPECT_TRUE(evaluation->planned().micro_batch().at_least());
  EXPECT_GT(told, 5);
  EXPECT_EQ(evaluation->none().impossible(), "");
  EXPECT_THAT(evaluation->techniques().rbegin()->impossible(), HasSubstr("time was over"));
  EXPECT_THAT(Findings(*evaluation),
              Contains("The largest micro-batch was not looked for: its time was over."));
}

// A plan that is under way is left when time is over, whatever is asked between plans.
TEST(EvaluationTest, EndsWithinAPlan) {
  for (const int moments : {0, 3, 10}) {
    int asked = 0;
    const auto evaluation = EvaluateJob(Job(), MakeBudget(int64_t{3} << 30),
                                        {.brief = false,
                                         .goes_on = [] { return true; },
                                         .in_time = [&] { return ++asked <= moments; },
                                         .tell = {}});
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    EXPECT_FALSE(evaluation->complete());
    EXPECT_NE(evaluation->planned().layout().micro_batch(), 0u);  // there in any case
    EXPECT_THAT(evaluation->techniques().rbegin()->impossible(), HasSubstr("time was over"));
    EXPECT_TRUE(evaluation->planned().micro_batch().at_least());
    // No layout is compiled any more: each plan that is begun asks once and ends.
    EXPECT_LE(asked, moments + 2 * evaluation->plans());
  }
}

TEST(EvaluationTest, AWrongSpecIsRefusedAsByPlan) {
  v1::JobSpec spec = Job();
  spec.mutable_layout()->set_tp(3);
  const auto evaluation =
      EvaluateJob(spec, MakeBudget(int64_t{3} << 30), {.brief = true, .goes_on = {}, .tell = {}});
  EXPECT_EQ(evaluation.status(), Prepare(spec, MakeBudget(int64_t{3} << 30)).status());
}

}  // namespace
}  // namespace terrace
