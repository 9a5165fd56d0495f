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

}  // namespace
}  // namespace terrace
