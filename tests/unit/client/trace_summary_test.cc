// What the table of a measured timeline says: sums by operation of the last step alone.
//
// SPDX-License-Identifier: Apache-2.0
#include "client/trace_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

using ::testing::HasSubstr;

std::string Trace(const std::string& events) {
  return R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","pid":0,"tid":0,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"send"}})" +
         events + "]}";
}

std::string Slice(int stream, const std::string& name, int step, int begin_us, int duration_us) {
  return ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":" + std::to_string(stream) + ",\"name\":\"" + name +
         "\",\"ts\":" + std::to_string(begin_us) + ",\"dur\":" + std::to_string(duration_us) +
         ",\"args\":{\"step\":" + std::to_string(step) + "}}";
}

TEST(TraceSummaryTest, TheLastStepIsSummedByOperationLongestFirst) {
  const auto table =
      TraceSummary(Trace(Slice(0, "qkv", 0, 0, 90'000) + Slice(0, "norm", 1, 100'000, 500) +
                         Slice(0, "qkv", 1, 100'500, 2000) + Slice(0, "qkv", 1, 102'500, 1000) +
                         Slice(1, "activations", 1, 103'000, 1000)));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(*table,
            "STREAM   OPERATION    CALLS  MS     OF THE STEP\n"
            "compute  qkv          2      3.000  75.0 %\n"
            "send     activations  1      1.000  25.0 %\n"
            "compute  norm         1      0.500  12.5 %\n"
            "step: 4.000 ms\n");
}

TEST(TraceSummaryTest, WhatIsNoTraceIsSaidToBeNone) {
  for (const char* text : {"", "no", "[]", "{}", R"({"traceEvents":7})"}) {
    EXPECT_EQ(TraceSummary(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
  EXPECT_THAT(std::string(TraceSummary(Trace("")).status().message()), HasSubstr("no step"));
}

}  // namespace
}  // namespace terrace
