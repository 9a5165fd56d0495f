// SPDX-License-Identifier: Apache-2.0
#include "proto/program/played_program.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "proto/program/loop_positions.h"
#include "proto/program/loops.h"
#include "tests/unit/proto/program/loop_program.h"

namespace terrace {
namespace {

TEST(LoopsTest, LoopsThatAreNotPartsInOrderDoNotFit) {
  LoopProgram made;
  v1::Sequence train = made.program().sequences(0);
  EXPECT_TRUE(LoopsFit(train));
  v1::Loop* loop = train.mutable_loops(0);
  const v1::Loop right = *loop;
  loop->set_trips(0);
  EXPECT_FALSE(LoopsFit(train));
  *loop = right;
  loop->set_count(0);
  EXPECT_FALSE(LoopsFit(train));
  loop->set_count(1000);
  EXPECT_FALSE(LoopsFit(train));
  *loop = right;
  *train.add_loops() = right;
  EXPECT_FALSE(LoopsFit(train));
}

TEST(LoopsTest, AnInstructionOfALoopCountsOnceAnIteration) {
  LoopProgram made({.micro_batches = 102});
  const v1::Sequence& train = made.program().sequences(0);
  const LoopIndex index(train);
  int64_t executed = 0;
  for (int i = 0; i < train.instructions_size(); ++i) executed += index.TripsOf(i);
  EXPECT_EQ(executed, PlayedInstructions(train));
  EXPECT_EQ(executed, 2 + 4 + 100 * 5 + 4 + 2);
}

TEST(PlayedProgramTest, AProgramWithoutLoopsIsItsOwnList) {
  LoopProgram made;
  made.program().mutable_sequences(0)->clear_loops();
  const PlayedProgram played(&made.program());
  EXPECT_EQ(&played.program(), &made.program());
  EXPECT_EQ(played.left_out(), 0);
  EXPECT_EQ(played.PlayedAt(0, 7).instruction, 7);
  EXPECT_EQ(&played.BufferOf(3), &made.program().buffers(3));
}

TEST(PlayedProgramTest, TheListKeepsBytesAndMicroBatchesOfTheWholeStep) {
  LoopProgram made({.micro_batches = 1002});
  const PlayedProgram played(&made.program());
  const v1::Sequence& list = played.program().sequences(0);
  EXPECT_EQ(played.left_out() % 2, 0);
  EXPECT_GT(played.left_out(), 980);
  EXPECT_LT(list.instructions_size(), 80);
  EXPECT_TRUE(list.loops().empty());
  EXPECT_EQ(played.program().buffers(LoopProgram::kNorms).bytes(), 1002 * 4);
  EXPECT_EQ(played.program().rules().micro_batches(), 1002u);
  std::set<int> forwards;
  for (const v1::Instruction& instruction : list.instructions()) {
    if (instruction.text() == "forward") forwards.insert(instruction.micro_batch());
  }
  EXPECT_TRUE(forwards.contains(0));
  EXPECT_TRUE(forwards.contains(1));
  EXPECT_EQ(*forwards.rbegin(), 1001);
  EXPECT_EQ(played.IndexOf(list), 0);
}

TEST(PlayedProgramTest, AllIterationsWrittenOutAreTheWholeStep) {
  LoopProgram made({.micro_batches = 40});
  const PlayedProgram played(&made.program(), 0);
  EXPECT_EQ(played.program().sequences(0).instructions_size(),
            PlayedInstructions(made.program().sequences(0)));
  std::map<int32_t, int> loads;
  for (const v1::Instruction& instruction : played.program().sequences(0).instructions())
    loads[instruction.micro_batch()] += instruction.text() == "load";
  for (int m = 0; m < 40; ++m) EXPECT_EQ(loads[m], 1) << m;
}

class LoopPositionsTest : public testing::Test {
 protected:
  LoopPositionsTest()
      : left_out_(
            IterationsToLeaveOut(made_.program(), IterationsToTellPositions(made_.program()))),
        positions_(made_.program(), made_.program().sequences(0), left_out_) {}
  // compute: 3 before, 3 an iteration; inputs: 2 and 1; to_host: 1 and 1.
  LoopPositions::Place Of(std::vector<int32_t> finished) { return positions_.Of(finished); }

  LoopProgram made_{{.micro_batches = 100'002}};
  const int64_t left_out_;
  const LoopPositions positions_;
};

TEST_F(LoopPositionsTest, NothingIsTakenOffBeforeTheLoopAndInItsFirstTurns) {
  EXPECT_EQ(Of({0, 0, 0}).finished, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(Of({2, 2, 0}).finished, (std::vector<int32_t>{2, 2, 0}));
  EXPECT_EQ(Of({3 + 3 * 3, 2 + 4, 1 + 3}).finished, (std::vector<int32_t>{12, 6, 4}));
}

TEST_F(LoopPositionsTest, AllStreamsLoseTheSameWholeTurns) {
  const LoopPositions::Place place = Of({3 + 3 * 70'001 + 2, 2 + 70'002, 1 + 70'000});
  ASSERT_EQ(place.skipped, (std::vector<int64_t>{69'998}));
  EXPECT_EQ(place.finished, (std::vector<int32_t>{3 + 3 * 3 + 2, 2 + 4, 1 + 2}));
}

TEST_F(LoopPositionsTest, BehindTheLoopAllThatTheListLacksIsTakenOff) {
  const auto kept = static_cast<int32_t>(100'000 - left_out_);
  // The host is still in the last iteration but one.
  EXPECT_EQ(Of({3 + 3 * 100'000 + 1, 2 + 100'000, 1 + 99'998}).finished,
            (std::vector<int32_t>{3 + 3 * kept + 1, 2 + kept, 1 + kept - 2}));
  // All is over, with the counters' end mark.
  const LoopPositions::Place end = Of({3 + 300'000 + 6, 2 + 100'001, 1 + 100'003});
  EXPECT_EQ(end.finished, (std::vector<int32_t>{3 + 3 * kept + 6, 2 + kept + 1, 1 + kept + 3}));
}

}  // namespace
}  // namespace terrace
