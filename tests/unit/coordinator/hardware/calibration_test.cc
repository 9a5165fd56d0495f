// Holds the time model of the catalogue to what it reaches over published runs; a change that makes
// it worse must say so. The table itself: tests/bench/calibrate.cc.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/published_runs.h"

namespace terrace {
namespace {

std::vector<PublishedRun> Runs() {
  return *ReadPublishedRuns(TERRACE_TEST_DATA "/published_runs.csv");
}

TEST(CalibrationTest, EveryRowIsPredictedOrNamedAsLeftOut) {
  const std::vector<PublishedRun> runs = Runs();
  EXPECT_EQ(runs.size(), 77u);
  int left_out = 0;
  for (const PublishedRun& run : runs) left_out += !run.not_expressible.empty();
  EXPECT_EQ(left_out, 11);
  EXPECT_EQ(ErrorsOf(runs).runs, 66);
}

TEST(CalibrationTest, TheMeanErrorStaysUnderEightPercent) {
  const Errors errors = ErrorsOf(Runs());
  EXPECT_LT(errors.mean_error, 0.075);
  EXPECT_LT(std::abs(errors.bias), 0.03);
}

TEST(CalibrationTest, NoSourceCarriesTheOthers) { EXPECT_LT(LeaveOneSourceOutError(Runs()), 0.08); }

TEST(CalibrationTest, RunsThatDifferAreRankedRight) {
  const Errors errors = ErrorsOf(Runs());
  EXPECT_GT(errors.pairs, 90);
  EXPECT_EQ(errors.pairs_wrong, 0);
}

TEST(CalibrationTest, MemoryIsWithinAnEighthOfTheMeters) {
  for (const PublishedRun& run : Runs()) {
    if (run.memory_gib <= 0) continue;
    const double error = Predict(run).their_memory_gib / run.memory_gib - 1;
    EXPECT_LT(std::abs(error), 0.125) << run.id;
  }
}

}  // namespace
}  // namespace terrace
