// A measured timeline: what it holds, and what it does when it is too long or cannot be written.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

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
    for (int i = 0; i < instructions; ++i) {
      stream.instructions.emplace_back().source = &source_;
      stream.slices.push_back({.start_ns = (i + 1) * 1'000'000, .end_ns = (i + 2) * 1'000'000});
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

}  // namespace
}  // namespace terrace
