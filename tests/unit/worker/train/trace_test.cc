// A measured timeline: what it holds, and what it does when it is too long or cannot be written.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/train/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/clock.h"
#include "proto/program/loops.h"
#include "tests/unit/worker/vm/looped_program.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TraceTest : public testing::Test {
 protected:
  TraceTest() : folder_(fs::path(testing::TempDir()) / "trace_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    program_.add_streams()->set_kind(v1::COMPUTE);
    source_.set_text("a \"name\" \\ with\nall");  // a line break becomes a blank
    source_.set_id(7);
  }
  ~TraceTest() override { fs::remove_all(folder_); }

  // `instructions` of a millisecond each, one after the other.
  PreparedSequence Executed(int instructions) const {
    PreparedSequence sequence;
    PreparedStream stream{.kind = v1::COMPUTE, .instructions = {}, .slices = {}};
    constexpr int64_t kMillisecond = 1'000'000;  // ns
    for (int i = 0; i < instructions; ++i) {
      stream.instructions.emplace_back().source = &source_;
      stream.slices.push_back(
          {.start_ns = (i + 1) * kMillisecond, .end_ns = (i + 2) * kMillisecond});
    }
    sequence.streams.push_back(std::move(stream));
    return sequence;
  }
  std::string path() const { return folder_ / "trace.json"; }
  nlohmann::json Written() const {
    std::ifstream in(path());
    return nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  }

  const fs::path folder_;
  v1::Program program_;
  v1::Instruction source_;
};

TEST_F(TraceTest, EveryInstructionOfEveryStepIsASlice) {
  Trace trace(program_, 3);
  EXPECT_TRUE(trace.Add(Executed(2), 0));
  EXPECT_TRUE(trace.Add(Executed(2), 1));
  ASSERT_TRUE(trace.Write(path()).ok());
  const nlohmann::json events = Written()["traceEvents"];
  ASSERT_EQ(events.size(), 2u + 4u) << "two names, four slices";
  const nlohmann::json& last = events.back();
  EXPECT_EQ(last["name"], "a \"name\" \\ with all");
  EXPECT_EQ(last["pid"], 3);
  EXPECT_EQ(last["ts"], 1000.0);
  EXPECT_EQ(last["dur"], 1000.0);
  EXPECT_EQ(last["args"]["step"], 1);
  EXPECT_EQ(last["args"]["id"], 7);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1)
      << "nothing half written is left";
}

TEST_F(TraceTest, AStepThatDoesNotFitIsLeftOutWhole) {
  Trace trace(program_, 0);
  const PreparedSequence small = Executed(10), large = Executed(60'000);
  EXPECT_TRUE(trace.Add(small, 0));
  EXPECT_TRUE(trace.Add(large, 1));
  EXPECT_FALSE(trace.Add(large, 2)) << "two have more than 15 MiB";
  ASSERT_TRUE(trace.Write(path()).ok());
  EXPECT_LE(fs::file_size(path()), kTraceBytesMax + 100);
  EXPECT_EQ(Written()["traceEvents"].back()["args"]["step"], 1);
}

TEST_F(TraceTest, WhereNoStepFitsNothingIsWrittenAndTheRuleIsNamed) {
  Trace trace(program_, 0);
  EXPECT_FALSE(trace.Add(Executed(200'000), 0));
  const absl::Status status = trace.Write(path());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("15 MiB"));
  EXPECT_FALSE(fs::exists(path()));
}

TEST_F(TraceTest, WhatCannotBeWrittenIsNamedWithItsPath) {
  Trace trace(program_, 0);
  ASSERT_TRUE(trace.Add(Executed(1), 0));
  const absl::Status no_folder = trace.Write((folder_ / "none" / "trace.json").string());
  EXPECT_FALSE(no_folder.ok());
  EXPECT_THAT(std::string(no_folder.message()), HasSubstr("none/trace.json"));
  fs::create_directories(path() + "/in the way");
  const absl::Status in_the_way = trace.Write(path());
  EXPECT_FALSE(in_the_way.ok());
  EXPECT_THAT(std::string(in_the_way.message()), HasSubstr("trace.json"));
}

// Of a program with a loop: every iteration of a few, of many the first and the last ones.
class TraceOfLoopTest : public TraceTest {
 protected:
  // The events of one step.
  nlohmann::json Traced(uint32_t trips) {
    LoopedProgram looped({.slots = 2, .trips = trips});
    SystemClock clock;
    auto vm = Vm::Create(looped.program(), {.threads = 1, .arenas = looped.tiny().Arenas()}, &clock,
                         nullptr);
    EXPECT_TRUE(vm.ok()) << vm.status();
    NoIo io;
    EXPECT_TRUE((*vm)->Run("train", &io).ok());
    Trace trace(looped.program(), 0);
    EXPECT_TRUE(trace.Add(*(*vm)->Find("train"), 1));
    EXPECT_TRUE(trace.Write(path()).ok());
    nlohmann::json slices = nlohmann::json::array();
    const nlohmann::json written = Written();
    for (const nlohmann::json& event : written["traceEvents"]) {
      if (event["ph"] == "X") slices.push_back(event);
    }
    played_ = PlayedInstructions(looped.program().sequences(0));
    body_ = looped.program().sequences(0).loops(0).count();
    return slices;
  }

  int64_t played_ = 0;
  int64_t body_ = 0;
};

TEST_F(TraceOfLoopTest, EveryIterationOfAFewIsThere) {
  const nlohmann::json slices = Traced(5);
  EXPECT_EQ(slices.size(), static_cast<size_t>(played_));
  std::map<int, int> by_iteration;
  for (const nlohmann::json& slice : slices) {
    if (slice["args"].contains("iteration")) ++by_iteration[slice["args"]["iteration"].get<int>()];
  }
  ASSERT_EQ(by_iteration.size(), 5u);
  for (const auto& [iteration, count] : by_iteration) EXPECT_EQ(count, body_) << iteration;
}

TEST_F(TraceOfLoopTest, OfManyIterationsItSaysWhichAreLeftOut) {
  const nlohmann::json slices = Traced(20'000);
  EXPECT_LT(slices.size(), static_cast<size_t>(2 * kTracedInLoopsMax));
  int left_out = 0, last = 0;
  for (const nlohmann::json& slice : slices) {
    if (slice["name"].get<std::string>().ends_with("left out")) ++left_out;
    if (slice.contains("args") && slice["args"].contains("iteration"))
      last = std::max(last, slice["args"]["iteration"].get<int>());
  }
  EXPECT_GT(left_out, 0);
  EXPECT_EQ(last, 19'999);
}

}  // namespace
}  // namespace terrace
