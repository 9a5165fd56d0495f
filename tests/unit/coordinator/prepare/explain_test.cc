// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/report/program_text.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::vector<v1::Program> Stages(uint32_t count) {
  std::vector<v1::Program> programs(count);
  for (uint32_t stage = 0; stage < count; ++stage) {
    programs[stage].set_stage(stage);
    programs[stage].set_stages(count);
  }
  return programs;
}

TEST(ExplainTest, APipelinedJobStartsWithItsSchedule) {
  v1::Layout layout;
  layout.set_pipeline_parallel(2);
  layout.set_micro_batches(3);
  layout.set_schedule("zb-h1");
  const std::string text = ExplainText(layout, Stages(2), "");
  EXPECT_THAT(text, StartsWith("schedule zb-h1: 2 stages, 3 micro-batches, ideal bubble 11.1 %"));
  EXPECT_THAT(text, HasSubstr("\nstage 0    0  1  . 0' 0w  2 1' 1w 2' 2w"));
  EXPECT_THAT(text, HasSubstr("\nstage 1    .  0 0'  1 1' 0w  2 2' 1w 2w"));
}

TEST(ExplainTest, ChunksAreToldApart) {
  v1::Layout layout;
  layout.set_pipeline_parallel(2);
  layout.set_micro_batches(3);
  layout.set_schedule("zbv");
  EXPECT_THAT(ExplainText(layout, {}, ""), HasSubstr("\nstage 1     .  a0  b0  a1  b1 b0'"));
}

TEST(ExplainTest, OtherJobsAreOnlyListed) {
  const std::vector<v1::Program> programs = Stages(1);
  EXPECT_EQ(ExplainText({}, programs, ""), ProgramText(programs[0]));
}

TEST(ExplainTest, OneStageCanBeSelected) {
  const auto all = SelectStage(Stages(3), std::nullopt);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->size(), 3u);
  const auto one = SelectStage(Stages(3), 2);
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->front().stage(), 2u);
  EXPECT_THAT(std::string(SelectStage(Stages(3), 3).status().message()),
              HasSubstr("--stage: got 3, must be 0 to 2"));
  EXPECT_THAT(std::string(SelectStage(Stages(1), 1).status().message()), HasSubstr("only stage 0"));
}

}  // namespace
}  // namespace terrace
