// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/unit/coordinator/compiler/pipeline/schedule_blocking.h"
#include "tests/unit/coordinator/compiler/pipeline/schedule_shapes.h"

namespace terrace::compiler {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ScheduleTest, EveryMicroBatchPassesEveryChunkOnceEachWay) {
  for (const ScheduleShape& shape : AllShapes()) {
    SCOPED_TRACE(Describe(shape));
    const Schedule schedule = MakeOrDie(shape);
    ASSERT_EQ(schedule.size(), static_cast<size_t>(shape.stages));
    const std::set<PassKind> kinds =
        SplitsBackward(shape.name)
            ? std::set{PassKind::kForward, PassKind::kBackwardInput, PassKind::kBackwardWeight}
            : std::set{PassKind::kForward, PassKind::kBackward};
    for (const std::vector<Pass>& passes : schedule) {
      std::set<std::tuple<PassKind, int, int>> seen;
      for (const Pass& pass : passes) {
        ASSERT_TRUE(kinds.contains(pass.kind));
        ASSERT_TRUE(pass.micro_batch >= 0 && pass.micro_batch < shape.micro_batches);
        ASSERT_TRUE(pass.chunk >= 0 && pass.chunk < shape.chunks);
        ASSERT_TRUE(seen.insert({pass.kind, pass.micro_batch, pass.chunk}).second);
      }
      ASSERT_EQ(seen.size(), kinds.size() * shape.micro_batches * shape.chunks);
    }
  }
}

TEST(ScheduleTest, NoOrderBlocksOrIsSlowedWithItsSendBuffers) {
  for (const ScheduleShape& shape : AllShapes()) {
    SCOPED_TRACE(Describe(shape));
    const Schedule schedule = MakeOrDie(shape);
    Blocking blocking(shape, schedule, Retire::kByBuffers, kEqualCosts);
    ASSERT_TRUE(blocking.MessagesMatch());
    ASSERT_EQ(blocking.Run(), PlayIdeal(shape, schedule, kEqualCosts).step);
  }
}

TEST(ScheduleTest, AllButZbvAndRunsMayWaitForEachSendTwoPassesLater) {
  for (const ScheduleShape& shape : AllShapes()) {
    if (shape.name == "zbv" || (shape.name == kBreadthFirst && shape.chunks > 1)) continue;
    SCOPED_TRACE(Describe(shape));
    const Schedule schedule = MakeOrDie(shape);
    ASSERT_EQ(Blocking(shape, schedule, Retire::kTwoPassesLater, kEqualCosts).Run(),
              PlayIdeal(shape, schedule, kEqualCosts).step);
  }
  const ScheduleShape zbv = {"zbv", 2, 2, 4};
  EXPECT_EQ(Blocking(zbv, MakeOrDie(zbv), Retire::kTwoPassesLater, kEqualCosts).Run(), -1);
  // All messages of a run are on their way at once.
  const ScheduleShape runs = {"breadth_first", 2, 2, 8};
  EXPECT_EQ(Blocking(runs, MakeOrDie(runs), Retire::kTwoPassesLater, kEqualCosts).Run(), -1);
}

TEST(ScheduleTest, UnevenCostsAndSlowTransfersBlockNothing) {
  const IdealCosts uneven = {
      .forward = 3, .backward_input = 5, .backward_weight = 2, .transfer = 0.5};
  for (const ScheduleShape& shape : AllShapes()) {
    SCOPED_TRACE(Describe(shape));
    ASSERT_GT(Blocking(shape, MakeOrDie(shape), Retire::kByBuffers, uneven).Run(), 0);
  }
}

// ---- places, table, refusals --------------------------------------------------------------------

TEST(ScheduleTest, PlacesAndModelChunksAreInverse) {
  for (const ScheduleShape& shape : AllShapes()) {
    for (int chunk = 0; chunk < shape.stages * shape.chunks; ++chunk) {
      const StageChunk place = StageChunkOf(shape, chunk);
      ASSERT_EQ(ModelChunk(shape, place.stage, place.chunk), chunk) << Describe(shape);
    }
  }
  EXPECT_EQ(StageChunkOf({"zbv", 4, 2, 1}, 4), (StageChunk{3, 1}));
  EXPECT_EQ(StageChunkOf({"interleaved", 4, 2, 1}, 4), (StageChunk{0, 1}));
}

TEST(ScheduleTest, PassesKnowWhoComesBeforeAndAfter) {
  const ScheduleShape shape = {"interleaved", 2, 2, 1};
  EXPECT_EQ(ConsumerOf(shape, 1, {PassKind::kForward, 0, 0}), (StageChunk{0, 1}));
  EXPECT_EQ(ProducerOf(shape, 0, {PassKind::kForward, 0, 1}), (StageChunk{1, 0}));
  EXPECT_EQ(ConsumerOf(shape, 0, {PassKind::kBackward, 0, 1}), (StageChunk{1, 0}));
  EXPECT_EQ(ConsumerOf(shape, 1, {PassKind::kForward, 0, 1}), std::nullopt);
  EXPECT_EQ(ProducerOf(shape, 1, {PassKind::kBackward, 0, 1}), std::nullopt);
  EXPECT_EQ(ConsumerOf({"zbv", 2, 2, 1}, 1, {PassKind::kForward, 0, 0}), (StageChunk{1, 1}));
  EXPECT_EQ(ConsumerOf({"zbv", 2, 2, 1}, 0, {PassKind::kBackwardWeight, 0, 1}), std::nullopt);
}

TEST(ScheduleTest, TheTableShowsClockAndStages) {
  const ScheduleShape shape = {"1f1b", 2, 1, 2};
  EXPECT_EQ(ScheduleTable(shape, MakeOrDie(shape), 100),
            "clock      0  1  2  3  4  5  6  7  8\n"
            "stage 0    0  1  .  . 0' 0'  . 1' 1'\n"
            "stage 1    .  0 0' 0'  1 1' 1'  .  .\n");
}

TEST(ScheduleTest, WideTablesAreCut) {
  const ScheduleShape shape = {"zbv", 4, 2, 16};
  const std::string table = ScheduleTable(shape, MakeOrDie(shape), 60);
  size_t begin = 0;
  for (size_t end; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = table.substr(begin, end - begin);
    EXPECT_LE(line.size(), 60u);
    EXPECT_THAT(line, testing::EndsWith(" ..."));
  }
}

TEST(ScheduleTest, AnOrderThatBlocksNeverEnds) {
  const ScheduleShape shape = {"1f1b", 2, 1, 1};
  Schedule schedule = MakeOrDie(shape);
  std::swap(schedule[0][0], schedule[0][1]);
  EXPECT_EQ(PlayIdeal(shape, schedule, kEqualCosts).step, std::numeric_limits<double>::infinity());
}

TEST(ScheduleTest, WhatNoScheduleCanBeIsRefusedByField) {
  const auto refusal = [](const ScheduleShape& shape) {
    const auto status = MakeSchedule(shape).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({"2f2b", 2, 1, 4}),
              AllOf(HasSubstr("layout.schedule: got '2f2b'"), HasSubstr("zb-h1")));
  EXPECT_THAT(refusal({"1f1b", 0, 1, 4}), HasSubstr("layout.pp: got 0"));
  EXPECT_THAT(refusal({"1f1b", 2, 1, 0}), HasSubstr("got 0"));
  EXPECT_THAT(refusal({"1f1b", 2, 2, 4}), HasSubstr("try schedule 'interleaved'"));
  EXPECT_THAT(refusal({"interleaved", 2, 1, 4}), HasSubstr("layout.interleave: got 1"));
  EXPECT_THAT(refusal({"zbv", 2, 1, 4}), HasSubstr("must be 2"));
}

}  // namespace
}  // namespace terrace::compiler
