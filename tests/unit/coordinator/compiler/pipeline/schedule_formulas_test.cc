// Steps, idle time and activations held of each schedule against the formulas of its paper.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "coordinator/compiler/pipeline/schedule.h"
#include "tests/unit/coordinator/compiler/pipeline/schedule_shapes.h"

namespace terrace::compiler {
namespace {

// Activations that a stage holds at most, in chunks: from a forward pass to the end of the last
// backward pass that reads them.
int PeakActivations(const std::vector<Pass>& passes) {
  int live = 0, peak = 0;
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::kForward) peak = std::max(peak, ++live);
    if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight) --live;
  }
  return peak;
}

// Idle time of each stage in a step, with F = B = W = 1 a chunk.
double Bubble(const ScheduleShape& shape) {
  return PlayIdeal(shape, MakeOrDie(shape), kEqualCosts).step -
         3.0 * shape.chunks * shape.micro_batches;
}

TEST(ScheduleTest, GpipeAnd1f1bIdleForOnePassBothWaysAStage) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (const ScheduleShape& shape : Shapes(name)) {
      SCOPED_TRACE(Describe(shape));
      const int p = shape.stages, m = shape.micro_batches;
      const IdealTimes times = PlayIdeal(shape, MakeOrDie(shape), kEqualCosts);
      ASSERT_DOUBLE_EQ(times.step, 3 * (m + p - 1));
      ASSERT_DOUBLE_EQ(times.bubble_ratio, double(p - 1) / m);
    }
  }
}

TEST(ScheduleTest, InterleavingDividesTheBubbleByTheChunks) {
  for (const ScheduleShape& shape : Shapes("interleaved")) {
    SCOPED_TRACE(Describe(shape));
    const int p = shape.stages, m = shape.micro_batches;
    const double bubble = Bubble(shape);
    if (m % p == 0) {
      ASSERT_DOUBLE_EQ(bubble, 3 * (p - 1));  // a chunk is 1 / chunks of a stage
    } else {
      // Not slower than with the micro-batches that are missing to the next multiple of p.
      ASSERT_LE(bubble, 3 * (p - 1) + 3.0 * shape.chunks * (p - m % p));
    }
  }
}

TEST(ScheduleTest, RunsOfAllMicroBatchesIdleAsInterleavedPassesDo) {
  for (const ScheduleShape& shape : Shapes("breadth_first")) {
    SCOPED_TRACE(Describe(shape));
    const int p = shape.stages, m = shape.micro_batches;
    // With fewer micro-batches than stages, each chunk's first pass waits for the one before.
    ASSERT_DOUBLE_EQ(Bubble(shape), 3 * (p - 1 + (shape.chunks - 1) * std::max(0, p - m)));
  }
}

TEST(ScheduleTest, ZbH1IdlesAThirdOf1f1b) {
  for (const ScheduleShape& shape : Shapes("zb-h1")) {
    SCOPED_TRACE(Describe(shape));
    const int p = shape.stages, m = shape.micro_batches;
    // (p - 1) (F + B - W); the first p - m of the stages' weight gradients are not there to fill.
    ASSERT_DOUBLE_EQ(Bubble(shape), p - 1 + std::max(0, p - m));
  }
  for (int p = 1; p <= 8; ++p) {  // unequal: a forward pass of 2, input 3, weight 2
    const ScheduleShape shape = {"zb-h1", p, 1, 2 * p};
    const IdealTimes times = PlayIdeal(shape, MakeOrDie(shape),
                                       {.forward = 2, .backward_input = 3, .backward_weight = 2});
    EXPECT_DOUBLE_EQ(times.step, 7 * 2 * p + (p - 1) * 3);
  }
}

// The paper's zero bubble: with F = B = W and at least 2 p - 1 micro-batches no stage idles between
// its first and its last pass. Stages start and end one after another, so that a step that all end
// together still takes (p - 1) passes of half a stage longer: a sixth of 1f1b's bubble.
TEST(ScheduleTest, ZbvHasNoGaps) {
  for (const ScheduleShape& shape : Shapes("zbv")) {
    if (shape.micro_batches < 2 * shape.stages - 1) continue;
    SCOPED_TRACE(Describe(shape));
    const IdealTimes times = PlayIdeal(shape, MakeOrDie(shape), kEqualCosts);
    for (int stage = 0; stage < shape.stages; ++stage) {
      ASSERT_DOUBLE_EQ(times.start[stage][0], stage);
      ASSERT_DOUBLE_EQ(times.end[stage].back() - stage, 6 * shape.micro_batches);
    }
    ASSERT_DOUBLE_EQ(Bubble(shape), shape.stages - 1);
  }
}

// In chunks: with zbv, p stages' worth are 2 p halves.
int ExpectedActivations(const ScheduleShape& shape, int stage) {
  const int p = shape.stages, m = shape.micro_batches, v = shape.chunks;
  if (shape.name == "gpipe" || shape.name == "breadth_first") return v * m;
  if (shape.name == "1f1b") return std::min(m, p - stage);
  if (shape.name == "zb-h1") return std::min(m, p);
  if (shape.name == "zbv") return std::min(2 * m, 2 * p);
  return std::min(v * m, 2 * (p - stage - 1) + (v - 1) * p + 1);
}

TEST(ScheduleTest, ActivationsHeldAtMost) {
  for (const ScheduleShape& shape : AllShapes()) {
    SCOPED_TRACE(Describe(shape));
    const Schedule schedule = MakeOrDie(shape);
    for (int stage = 0; stage < shape.stages; ++stage) {
      const int peak = PeakActivations(schedule[stage]);
      ASSERT_LE(peak, ExpectedActivations(shape, stage));
      // Orders that were made for more micro-batches may hold fewer.
      if (shape.name == "interleaved" && shape.micro_batches % shape.stages != 0) continue;
      if (shape.name == "zbv" && shape.micro_batches < 2 * shape.stages - 1) continue;
      ASSERT_EQ(peak, ExpectedActivations(shape, stage));
    }
  }
}

}  // namespace
}  // namespace terrace::compiler
