// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_repair.h"

#include <gtest/gtest.h>

#include "tests/unit/coordinator/compiler/pack_data.h"
#include "tests/unit/coordinator/compiler/pack_programs.h"
#include "tests/unit/coordinator/compiler/pack_tiny.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 20'000'000;

TEST(PackRepairTest, TinyProblemsFitAtTheOptimumAndNotBelow) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto buffers = RandomTinyBuffers(seed, 7);
    const PackProblem problem = MakePackProblem(buffers);
    const int64_t optimum = OptimumByAllOrders(problem);
    Packing packing;
    PackPlacement placement;
    int64_t steps = kSteps;
    ASSERT_TRUE(PackRepair(problem, optimum).Run(&steps, &placement));
    EXPECT_EQ(placement.arena_bytes, optimum);
    packing.offsets = placement.offsets;
    EXPECT_EQ(FirstOverlap(buffers, packing), "");
    steps = 10'000;
    PackPlacement untouched;
    EXPECT_FALSE(PackRepair(problem, optimum - kPackAlignment).Run(&steps, &untouched));
    EXPECT_EQ(steps, 0);
    EXPECT_TRUE(untouched.offsets.empty());
  }
}

TEST(PackRepairTest, ATrainingProgramIsRepairedTheSameWayEveryTime) {
  const auto buffers = MakeProgramLives(TrainingProgramShapes()[0]);
  const PackProblem problem = MakePackProblem(buffers);
  const int64_t capacity = problem.lower_bound_bytes * 101 / 100 / kPackAlignment * kPackAlignment;
  PackPlacement first, second;
  int64_t steps = kSteps;
  ASSERT_TRUE(PackRepair(problem, capacity).Run(&steps, &first));
  steps = kSteps;
  ASSERT_TRUE(PackRepair(problem, capacity).Run(&steps, &second));
  EXPECT_EQ(first.offsets, second.offsets);
  EXPECT_LE(first.arena_bytes, capacity);
}

}  // namespace
}  // namespace terrace
