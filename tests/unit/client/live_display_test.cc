// SPDX-License-Identifier: Apache-2.0
#include "client/live_display.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

v1::Job JobOf(int64_t steps) {
  v1::Job job;
  job.mutable_spec()->mutable_train()->set_steps(steps);
  v1::StageMemory* memory = job.mutable_plan()->add_memory();
  memory->set_arena_bytes(3 << 20);
  v1::MemoryLine* line = memory->add_lines();
  line->set_tier(v1::DEVICE);
  line->set_class_(v1::PARAMETER);
  line->set_bytes(3 << 20);
  return job;
}

v1::JobEvent Step(int64_t step) {
  v1::JobEvent event;
  event.mutable_step()->set_step(step);
  event.mutable_step()->set_loss(1.5);
  event.mutable_step()->set_step_seconds(1);
  return event;
}

TEST(LiveDisplayTest, WithoutATerminalLinesArePaced) {
  LiveDisplay display(JobOf(100), /*terminal=*/false, 80);
  testing::internal::CaptureStdout();
  for (int step = 1; step <= 10; ++step) display.Show(Step(step), 1000 * step);
  const std::string shown = testing::internal::GetCapturedStdout();
  EXPECT_THAT(shown, testing::HasSubstr("step 1/100"));
  EXPECT_THAT(shown, testing::HasSubstr("step 6/100"));
  EXPECT_THAT(shown, testing::Not(testing::HasSubstr("step 5/100")));
  EXPECT_THAT(shown, testing::Not(testing::HasSubstr("\033")));
}

TEST(LiveDisplayTest, TheLastStepIsAlwaysShown) {
  LiveDisplay display(JobOf(2), /*terminal=*/false, 80);
  testing::internal::CaptureStdout();
  display.Show(Step(1), 1000);
  display.Show(Step(2), 1001);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), testing::HasSubstr("step 2/2"));
}

TEST(LiveDisplayTest, OnATerminalTheBlockIsRedrawnWithEtaAndMemory) {
  LiveDisplay display(JobOf(100), /*terminal=*/true, 80);
  testing::internal::CaptureStdout();
  display.Show(Step(1), 1000);
  display.Show(Step(11), 11000);
  const std::string shown = testing::internal::GetCapturedStdout();
  EXPECT_THAT(shown, testing::HasSubstr("ETA 1 m 29 s"));
  EXPECT_THAT(shown, testing::HasSubstr("parameter 3.0 MiB"));
  EXPECT_THAT(shown, testing::HasSubstr("\033[4A\033[J"));
}

TEST(LiveDisplayTest, LinesNeverWrap) {
  LiveDisplay display(JobOf(100), /*terminal=*/true, 40);
  testing::internal::CaptureStdout();
  display.Show(Step(1), 1000);
  std::string line;
  for (char c : testing::internal::GetCapturedStdout()) {
    if (c == '\n') {
      EXPECT_LT(line.size(), 40u);
      line.clear();
    } else {
      line += c;
    }
  }
}

}  // namespace
}  // namespace terrace
