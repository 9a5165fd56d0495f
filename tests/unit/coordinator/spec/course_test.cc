// How long training is, and what ends it.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string With(const std::string& train, const std::string& rest = "") {
  return absl::StrCat("name: books\nmodel: {config: gpt2}\ndata: {train: [books.txt], ",
                      "sequence_length: 100}\ntrain: {global_batch: 8, ", train, "}\n", rest);
}

v1::JobSpec Parse(const std::string& train, const std::string& rest = "") {
  const auto spec = ParseJobSpec(With(train, rest), "/jobs");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : v1::JobSpec();
}

std::string ErrorOf(const std::string& train, const std::string& rest = "") {
  const auto spec = ParseJobSpec(With(train, rest), "/jobs");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << train;
  return std::string(spec.status().message());
}

TEST(CourseSpecTest, TokensAreWholeSteps) {
  EXPECT_EQ(Parse("tokens: 8000").train().steps(), 10);
  EXPECT_EQ(Parse("tokens: 8001").train().steps(), 11);
  EXPECT_EQ(Parse("tokens: 2e9").train().steps(), 2'500'000);
  EXPECT_EQ(Parse("tokens: 1").train().steps(), 1);
  EXPECT_EQ(Parse("steps: 7").train().tokens(), 0);
}

TEST(CourseSpecTest, StepsOrTokensNotBothNorNone) {
  EXPECT_THAT(
      ParseJobSpec("name: books\n", "/jobs").status().message(),
      AllOf(HasSubstr("model.config"), HasSubstr("train.steps"), HasSubstr("train.global_batch")))
      << "all that is missing is told at once";
  EXPECT_THAT(ErrorOf("seed: 1"), HasSubstr("train.steps: got nothing, must be a whole number from "
                                            "1 to 1000000000; try train.tokens"));
  EXPECT_THAT(ErrorOf("steps: 10, tokens: 8000"),
              HasSubstr("train.tokens: got a value, must be left out beside train.steps"));
  EXPECT_THAT(ErrorOf("tokens: 1e15"),
              HasSubstr("train.tokens: got 1000000000000000, must be those "
                        "of at most 1000000000 steps"));
  EXPECT_THAT(ErrorOf("steps: 0"), HasSubstr("train.steps: got \"0\""));
}

TEST(CourseSpecTest, TheWarmUpIsInStepsTokensOrPartsOfAll) {
  const auto warmup = [](const std::string& schedule) {
    return Parse(absl::StrCat("steps: 50, schedule: {", schedule, "}"))
        .train()
        .schedule()
        .warmup_steps();
  };
  EXPECT_EQ(warmup("warmup_steps: 5"), 5);
  EXPECT_EQ(warmup("warmup_tokens: 2401"), 4);
  EXPECT_EQ(warmup("warmup_ratio: 0.05"), 3);
  EXPECT_EQ(warmup("name: linear"), 0);
  EXPECT_EQ(
      Parse("tokens: 40_000, schedule: {warmup_ratio: 0.1}").train().schedule().warmup_steps(), 5);
  EXPECT_THAT(ErrorOf("steps: 50, schedule: {warmup_steps: 5, warmup_ratio: 0.1}"),
              HasSubstr("train.schedule.warmup_ratio: got a value, must be left out beside "
                        "train.schedule.warmup_steps"));
  EXPECT_THAT(
      ErrorOf("steps: 50, schedule: {warmup_tokens: 1e6}"),
      HasSubstr(
          "train.schedule.warmup_tokens: got 1250 steps of them, must be at most train.steps 50"));
}

TEST(CourseSpecTest, AnEarlyEndNeedsEvaluations) {
  const v1::JobSpec spec =
      Parse("steps: 50, eval_every_steps: 5, early_stop: {evaluations: 3, improvement: 0.01}",
            "checkpoint: {keep_best: true}\n");
  EXPECT_EQ(spec.train().early_stop().evaluations(), 3);
  EXPECT_DOUBLE_EQ(spec.train().early_stop().improvement(), 0.01);
  EXPECT_TRUE(spec.checkpoint().keep_best());
  EXPECT_EQ(Parse("steps: 50").train().early_stop().evaluations(), 0);
  EXPECT_THAT(ErrorOf("steps: 50, early_stop: {evaluations: 3}"),
              HasSubstr("accompanied by train.eval_every_steps"));
  EXPECT_THAT(ErrorOf("steps: 50, eval_every_steps: 5, early_stop: {improvement: 0.1}"),
              HasSubstr("accompanied by train.early_stop.evaluations"));
  EXPECT_THAT(ErrorOf("steps: 50", "checkpoint: {keep_best: true}\n"),
              HasSubstr("checkpoint.keep_best: got true, must be accompanied by "
                        "train.eval_every_steps"));
  EXPECT_THAT(
      ErrorOf("steps: 50, eval_every_steps: 5", "checkpoint: {keep_best: true, save: never}\n"),
      HasSubstr("left out with checkpoint.save never"));
}

}  // namespace
}  // namespace terrace
