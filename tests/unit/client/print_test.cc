// SPDX-License-Identifier: Apache-2.0
#include "client/print.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/exit_code.h"

namespace terrace {
namespace {

TEST(PrintTest, StepEventsHaveTheDocumentedKeys) {
  v1::JobEvent event;
  event.mutable_step()->set_step(3);
  event.mutable_step()->set_loss(2.5);
  event.mutable_step()->set_tokens_per_second(1000);
  EXPECT_EQ(EventLine(event),
            "{\"event\": \"step\", \"step\": 3, \"loss\": 2.5, \"grad_norm\": 0, "
            "\"tokens_per_second\": 1000, "
            "\"step_seconds\": 0, \"learning_rate\": 0, \"tokens\": 0, \"skipped\": false}");
}

TEST(PrintTest, WarningsNameTheirRank) {
  v1::JobEvent event;
  event.mutable_warning()->set_rank(3);
  event.mutable_warning()->set_text("the driver counts \"more\"");
  EXPECT_EQ(EventLine(event),
            "{\"event\": \"warning\", \"rank\": 3, \"text\": \"the driver counts "
            "\\\"more\\\"\"}");
  EXPECT_EQ(EventText(event, 10), "warning: rank 3: the driver counts \"more\"");
}

TEST(PrintTest, ALossThatIsNoNumberIsNull) {
  v1::JobEvent event;
  event.mutable_eval()->set_loss(NAN);
  EXPECT_NE(EventLine(event).find("\"loss\": null"), std::string::npos);
}

TEST(PrintTest, ADeviceIsShownByItsKindAndTheDriversName) {
  v1::Node node;
  EXPECT_EQ(DeviceText(node), "cpu");
  node.set_device("cpu");
  EXPECT_EQ(DeviceText(node), "cpu");
  node.set_device("cuda");
  EXPECT_EQ(DeviceText(node), "cuda");
  node.set_device_name("NVIDIA H100 80GB HBM3");
  EXPECT_EQ(DeviceText(node), "cuda: NVIDIA H100 80GB HBM3");
  EXPECT_NE(ToJson(node, false).find("\"device_name\":\"NVIDIA H100 80GB HBM3\""),
            std::string::npos)
      << ToJson(node, false);
}

TEST(PrintTest, MessagesAreEscaped) {
  v1::JobEvent event;
  event.mutable_state()->set_state(v1::FAILED);
  event.mutable_state()->set_message("a \"quoted\"\nline");
  EXPECT_NE(EventLine(event).find(R"("message": "a \"quoted\"\nline")"), std::string::npos)
      << EventLine(event);
  EXPECT_EQ(JsonString(""), "\"\"");
}

TEST(PrintTest, DurationsAndCountsAreShort) {
  EXPECT_EQ(FormatDuration(0.00414), "4.14 ms");
  EXPECT_EQ(FormatDuration(0), "0.00 s");
  EXPECT_EQ(FormatDuration(0.414), "0.41 s");
  EXPECT_EQ(FormatDuration(200), "3 m 20 s");
  EXPECT_EQ(FormatDuration(7500), "2 h 05 m");
  EXPECT_EQ(FormatDuration(NAN), "-");
  EXPECT_EQ(FormatCount(12432), "12.4k");
}

TEST(PrintTest, ExitCodesTellWhyAJobEnded) {
  v1::Job job;
  job.set_state(v1::SUCCEEDED);
  EXPECT_EQ(ExitCodeOfJob(job), 0);
  job.set_state(v1::FAILED);
  job.set_reason(v1::REASON_DATA_ERROR);
  EXPECT_EQ(ExitCodeOfJob(job), ToInt(ExitCode::kInvalidInput));
  job.set_reason(v1::REASON_DOES_NOT_FIT);
  EXPECT_EQ(ExitCodeOfJob(job), ToInt(ExitCode::kResources));
  job.set_reason(v1::REASON_OUT_OF_MEMORY);
  EXPECT_EQ(ExitCodeOfJob(job), ToInt(ExitCode::kResources));
  job.set_reason(v1::REASON_RESTARTS_EXHAUSTED);
  EXPECT_EQ(ExitCodeOfJob(job), ToInt(ExitCode::kFailure));
  job.set_state(v1::CANCELLED);
  EXPECT_EQ(ExitCodeOfJob(job), ToInt(ExitCode::kCancelled));
}

TEST(PrintTest, JsonKeepsSnakeCaseAndDefaults) {
  const std::string json = ToJson(v1::StateEvent(), /*pretty=*/false);
  EXPECT_EQ(json, R"({"state":"JOB_STATE_UNSPECIFIED","reason":"REASON_NONE","message":""})");
}

}  // namespace
}  // namespace terrace
