// What train.optimizer and train.schedule hold together.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// `train` and `rest`: more of the section, and of the spec.
std::string With(const std::string& train, const std::string& rest = "") {
  return absl::StrCat("name: books\nmodel: {config: gpt2}\ndata: {train: [books.txt]}\n",
                      "train: {steps: 100, global_batch: 8, ", train, "}\n", rest);
}

v1::TrainSpec Parse(const std::string& train) {
  const auto spec = ParseJobSpec(With(train), "/jobs");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? spec->train() : v1::TrainSpec();
}

std::string ErrorOf(const std::string& train, const std::string& rest = "") {
  const auto spec = ParseJobSpec(With(train, rest), "/jobs");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << train;
  return std::string(spec.status().message());
}

TEST(OptimizerSpecTest, RulesAndSchedulesAreRead) {
  const v1::TrainSpec sgd = Parse("optimizer: {name: sgd, momentum: 0.9, nesterov: true}");
  EXPECT_EQ(sgd.optimizer().name(), "sgd");
  EXPECT_DOUBLE_EQ(sgd.optimizer().momentum(), 0.9);
  EXPECT_TRUE(sgd.optimizer().nesterov());
  EXPECT_EQ(Parse("optimizer: {name: sgd}").optimizer().momentum(), 0);
  const v1::TrainSpec wsd = Parse(
      "optimizer: {name: lion, betas: [0.9, 0.99]}, schedule: {name: wsd, warmup_steps: 10, "
      "initial_lr: 1e-5, decay_steps: 20, decay: minus_sqrt}");
  EXPECT_DOUBLE_EQ(wsd.optimizer().beta2(), 0.99);
  EXPECT_EQ(wsd.schedule().decay_steps(), 20);
  EXPECT_EQ(wsd.schedule().decay(), "minus_sqrt");
  EXPECT_DOUBLE_EQ(wsd.schedule().initial_lr(), 1e-5);
  EXPECT_EQ(Parse("schedule: {name: cosine_restarts, cycles: 4}").schedule().cycles(), 4);
}

TEST(OptimizerSpecTest, KeysThatNothingReadsAreRefused) {
  EXPECT_THAT(ErrorOf("optimizer: {name: sgd, betas: [0.9, 0.99]}"),
              HasSubstr("train.optimizer.betas: got a value, must be left out with "
                        "train.optimizer.name sgd, which does not read it; "
                        "try train.optimizer.name adamw or adam or lion"));
  EXPECT_THAT(ErrorOf("optimizer: {name: lion, epsilon: 1e-8}"),
              HasSubstr("train.optimizer.epsilon"));
  EXPECT_THAT(ErrorOf("optimizer: {momentum: 0.9}"), HasSubstr("train.optimizer.momentum"));
  EXPECT_THAT(ErrorOf("schedule: {power: 2}"), HasSubstr("train.schedule.power"));
  EXPECT_THAT(ErrorOf("schedule: {name: linear, decay_steps: 5}"),
              HasSubstr("train.schedule.decay_steps"));
}

TEST(OptimizerSpecTest, NamesOfOtherProgramsAreKnown) {
  EXPECT_THAT(ErrorOf("optimizer: {name: adamw_torch_fused}"),
              HasSubstr("train.optimizer.name: got \"adamw_torch_fused\", must be one of adamw, "
                        "adam, sgd, lion, muon, adafactor, came; try adamw"));
  EXPECT_THAT(ErrorOf("optimizer: {name: paged_adamw_8bit}"),
              HasSubstr("try adamw with formats.moments: int8 and layout.offload.optimizer: host"));
  EXPECT_THAT(ErrorOf("optimizer: {name: DeepSpeedCPUAdam}"), HasSubstr("try adamw"));
  EXPECT_THAT(ErrorOf("optimizer: {name: lomo}"), HasSubstr("sgd with train.clip_grad_norm: 0"));
  EXPECT_THAT(ErrorOf("optimizer: {name: AdaLomo}"),
              HasSubstr("try adafactor with train.clip_grad_norm: 0"));
  EXPECT_THAT(ErrorOf("optimizer: {name: galore_adamw}"), HasSubstr("that rule is not there"));
  EXPECT_THAT(ErrorOf("optimizer: {name: Adafactor}"), HasSubstr("try adafactor"));
  EXPECT_THAT(ErrorOf("optimizer: {name: lionn}"), HasSubstr("try lion"));
}

TEST(OptimizerSpecTest, FactoredRulesHaveTheDefaultsOfTheirAuthors) {
  const v1::OptimizerSpec adafactor = Parse("optimizer: {name: adafactor}").optimizer();
  EXPECT_EQ(adafactor.beta1(), 0);
  EXPECT_DOUBLE_EQ(adafactor.beta2_decay(), -0.8);
  EXPECT_DOUBLE_EQ(adafactor.epsilon(), 1e-30);
  EXPECT_DOUBLE_EQ(adafactor.least_scale(), 1e-3);
  EXPECT_DOUBLE_EQ(adafactor.clip_threshold(), 1);
  EXPECT_TRUE(adafactor.scale_parameter());
  EXPECT_FALSE(adafactor.relative_step());
  EXPECT_EQ(adafactor.beta3(), 0);
  EXPECT_DOUBLE_EQ(Parse("optimizer: {name: adafactor, beta1: 0.9}").optimizer().beta1(), 0.9);
  const v1::OptimizerSpec came = Parse("optimizer: {name: came}").optimizer();
  EXPECT_DOUBLE_EQ(came.beta1(), 0.9);
  EXPECT_DOUBLE_EQ(came.beta2(), 0.999);
  EXPECT_DOUBLE_EQ(came.beta3(), 0.9999);
  EXPECT_DOUBLE_EQ(came.error_epsilon(), 1e-16);
  EXPECT_EQ(came.beta2_decay(), 0);
  // What they are to others is nothing.
  EXPECT_EQ(Parse("optimizer: {name: adamw}").optimizer().clip_threshold(), 0);
}

TEST(OptimizerSpecTest, WhatAFactoredRuleCannotDoIsRefused) {
  EXPECT_THAT(ErrorOf("optimizer: {name: adafactor, relative_step: true, lr: 1e-3}"),
              HasSubstr("train.optimizer.lr: got a value, must be left out with "
                        "train.optimizer.relative_step"));
  EXPECT_THAT(
      ErrorOf("optimizer: {name: adafactor, relative_step: true}, schedule: {name: linear}"),
      HasSubstr("train.schedule.name: got a value, must be left out"));
  EXPECT_THAT(ErrorOf("optimizer: {name: adafactor, scale_parameter: false, least_scale: 0.01}"),
              HasSubstr("which does not read it; try scale_parameter: true"));
  EXPECT_THAT(ErrorOf("optimizer: {name: adafactor, betas: [0.9, 0.99]}"),
              HasSubstr("train.optimizer.betas"));
  EXPECT_THAT(ErrorOf("optimizer: {name: came, beta1: 0.9}"), HasSubstr("train.optimizer.beta1"));
  EXPECT_THAT(ErrorOf("optimizer: {beta2_decay: -0.5}"),
              HasSubstr("try train.optimizer.name adafactor"));
  EXPECT_THAT(ErrorOf("optimizer: {name: adafactor}", "formats: {moments: bf16}"),
              HasSubstr("adafactor without beta1"));
  EXPECT_THAT(ErrorOf("optimizer: {name: came}", "formats: {moments: int8}"),
              HasSubstr("f32 or bf16 with train.optimizer.name came"));
  EXPECT_THAT(ErrorOf("optimizer: {name: came, groups: {\"*\": {rule: adamw}}}"),
              HasSubstr("left out with train.optimizer.name came"));
  EXPECT_THAT(ErrorOf("optimizer: {name: adafactor}", "layout: {zero: 3}"),
              HasSubstr("0, 1 or 2 with train.optimizer.name adafactor, which updates tensors as a "
                        "whole"));
  EXPECT_THAT(ErrorOf("precision: bf16, optimizer: {name: adafactor, stochastic_rounding: true}"),
              HasSubstr("false with train.optimizer.name adafactor"));
}

TEST(OptimizerSpecTest, NesterovNeedsMomentumWhichIsBelowOne) {
  EXPECT_THAT(ErrorOf("optimizer: {name: sgd, nesterov: true}"),
              HasSubstr("false without train.optimizer.momentum"));
  EXPECT_THAT(ErrorOf("optimizer: {name: sgd, momentum: 1.0}"),
              HasSubstr("train.optimizer.momentum: got \"1.0\", must be a number from 0"));
}

TEST(OptimizerSpecTest, PlainSgdHasNoMomentsToGiveAFormat) {
  const std::string error =
      ErrorOf("optimizer: {name: sgd}", "formats: {moments: bf16, allow: {moments: int8}}\n");
  EXPECT_THAT(error, HasSubstr("formats.moments: got bf16"));
  EXPECT_THAT(error, HasSubstr("formats.allow.moments: got int8"));
  EXPECT_THAT(error, HasSubstr("sgd without momentum, which keeps no moments"));
}

TEST(OptimizerSpecTest, ASchedulesNumbersFitTogether) {
  EXPECT_THAT(ErrorOf("schedule: {name: exponential}"),
              HasSubstr("train.schedule.min_lr: got 0, must be above 0"));
  EXPECT_THAT(ErrorOf("schedule: {initial_lr: 1e-5}"),
              HasSubstr("left out without train.schedule.warmup_steps"));
  EXPECT_THAT(ErrorOf("schedule: {warmup_steps: 5, initial_lr: 1}"),
              HasSubstr("train.schedule.initial_lr: got 1, must be at most train.optimizer.lr"));
  EXPECT_THAT(ErrorOf("schedule: {name: wsd, warmup_steps: 90, decay_steps: 20}"),
              HasSubstr("at most the 10 steps that the warm-up leaves"));
}

TEST(OptimizerSpecTest, GroupsAreReadInTheirOrder) {
  const v1::OptimizerSpec optimizer =
      Parse(
          "optimizer: {layer_decay: 0.8, groups: {\"*.bias\": {lr_scale: 2, weight_decay: 0}, "
          "\"*mlp*\": {weight_decay: 0.3}}}")
          .optimizer();
  EXPECT_DOUBLE_EQ(optimizer.layer_decay(), 0.8);
  ASSERT_EQ(optimizer.groups_size(), 2);
  EXPECT_EQ(optimizer.groups(0).match(), "*.bias");
  EXPECT_DOUBLE_EQ(optimizer.groups(0).lr_scale(), 2);
  EXPECT_TRUE(optimizer.groups(0).has_weight_decay());
  EXPECT_EQ(optimizer.groups(0).weight_decay(), 0);
  EXPECT_DOUBLE_EQ(optimizer.groups(1).lr_scale(), 1);
  EXPECT_DOUBLE_EQ(optimizer.groups(1).weight_decay(), 0.3);
  EXPECT_FALSE(Parse("optimizer: {groups: {\"*\": {lr_scale: 2}}}")
                   .optimizer()
                   .groups(0)
                   .has_weight_decay());
  EXPECT_EQ(Parse("optimizer: {lr: 1e-3}").optimizer().layer_decay(), 0);
}

TEST(OptimizerSpecTest, WrongGroupsAreNamed) {
  EXPECT_THAT(ErrorOf("optimizer: {groups: [a]}"), HasSubstr("train.optimizer.groups: got"));
  EXPECT_THAT(ErrorOf("optimizer: {groups: {\"*.bias\": 2}}"),
              HasSubstr("must be a mapping of lr_scale, weight_decay, rule or frozen"));
  EXPECT_THAT(ErrorOf("optimizer: {groups: {\"*.bias\": {}}}"),
              HasSubstr("must be a mapping of lr_scale, weight_decay, rule or frozen"));
  EXPECT_THAT(ErrorOf("optimizer: {groups: {\"*.bias\": {lr_scale: 0}}}"),
              HasSubstr("train.optimizer.groups.*.bias.lr_scale: got \"0\", must be a number above "
                        "0, at most 1000"));
  EXPECT_THAT(ErrorOf("optimizer: {groups: {\"*.bias\": {weight_decay: -1}}}"),
              HasSubstr("weight_decay: got \"-1\", must be a number from 0 to 10"));
  EXPECT_THAT(ErrorOf("optimizer: {groups: {\"*.bias\": {lr_scal: 1}}}"),
              HasSubstr("must be lr_scale, weight_decay, rule or frozen; try lr_scale"));
  EXPECT_THAT(ErrorOf("optimizer: {groups: {\"*.bias\": {frozen: 1}}}"),
              HasSubstr("frozen: got \"1\", must be true or false"));
  EXPECT_THAT(ErrorOf("optimizer: {groups: {\"*.bias\": {frozen: true, weight_decay: 0}}}"),
              HasSubstr("got frozen beside how it is trained, must be one or the other"));
  EXPECT_THAT(ErrorOf("optimizer: {layer_decay: 1.5}"),
              HasSubstr("train.optimizer.layer_decay: got \"1.5\""));
}

TEST(OptimizerSpecTest, TermsOfTheLossAreRead) {
  const v1::TrainSpec train = Parse("label_smoothing: 0.1, z_loss: 1e-4");
  EXPECT_DOUBLE_EQ(train.label_smoothing(), 0.1);
  EXPECT_DOUBLE_EQ(train.z_loss(), 1e-4);
  EXPECT_THAT(ErrorOf("label_smoothing: 1"), HasSubstr("train.label_smoothing: got \"1\""));
}

}  // namespace
}  // namespace terrace
