// Holds what docs/cluster.md says of the closed form to runs that the time model's constants were
// not fitted to. The tables: tests/bench/calibrate.cc --blind. Of plans and of their interval:
// prepare/published_plans_test.cc.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/blind_errors.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/published_runs.h"

namespace terrace {
namespace {

std::vector<PublishedRun> Read(const std::string& name, bool fused_attention = false) {
  return *ReadPublishedRuns(TERRACE_TEST_DATA "/" + name, fused_attention);
}

TEST(BlindErrorsTest, EachSourceIsPredictedByTheOthersAsWellAsDocumented) {
  const std::vector<PublishedRun> runs = Read("published_runs.csv");
  const std::vector<BlindPrediction> blind = LeaveOneSourceOut(runs);
  const BlindSummary all = SummaryOf(blind);
  EXPECT_EQ(all.runs, 66);
  EXPECT_NEAR(all.median, 0.072, 0.01);
  EXPECT_NEAR(all.mean, 0.082, 0.01);
  EXPECT_LT(all.worst, 0.38);
  EXPECT_NEAR(SummaryOf(blind, "TT25").bias, 0.184, 0.03);
  EXPECT_NEAR(SummaryOf(blind, "NEMO").bias, -0.102, 0.03);
}

TEST(BlindErrorsTest, ASourceIsNotPredictedByItself) {
  std::vector<PublishedRun> runs = Read("published_runs.csv");
  const std::vector<PublishedRun> given = runs;
  // What a source measured moves no prediction of it, and those of others.
  for (PublishedRun& run : runs) {
    if (SourceOf(run) == "FMS") run.tokens_per_second_per_device *= 1.5;
  }
  const auto before = LeaveOneSourceOut(given), after = LeaveOneSourceOut(runs);
  ASSERT_EQ(before.size(), after.size());
  int moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double a = before[i].tokens_per_second_per_device;
    const double b = after[i].tokens_per_second_per_device;
    if (SourceOf(*before[i].run) == "FMS") {
      EXPECT_DOUBLE_EQ(a, b) << before[i].run->id;
    }
    moved += a != b;
  }
  EXPECT_GT(moved, 40);
}

TEST(BlindErrorsTest, SourcesThatNoConstantSawAreAsFarOffAsDocumented) {
  const std::vector<PublishedRun> runs = Read("blind_runs.csv");
  const BlindSummary unseen = SummaryOf(AsCatalogued(runs));
  EXPECT_EQ(unseen.runs, 17);
  EXPECT_NEAR(unseen.median, 0.046, 0.015);
  EXPECT_NEAR(unseen.mean, 0.063, 0.015);
  // As if nobody wrote the scores of attention to memory, all were taken for too fast.
  const std::vector<PublishedRun> fused = Read("blind_runs.csv", /*fused_attention=*/true);
  const BlindSummary without = SummaryOf(AsCatalogued(fused));
  EXPECT_GT(without.mean, unseen.mean);
  EXPECT_GT(without.bias, unseen.bias);
}

}  // namespace
}  // namespace terrace
