// Holds what plans on paper say to training runs that others have published: a change of the
// simulator, of the compiler's schedules or of the catalogue that makes it worse must say so. The
// table itself: tests/bench/calibrate.cc --simulate.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/hardware/blind_errors.h"
#include "tests/support/blind_errors.h"
#include "tests/support/published_runs.h"
#include "tests/support/simulated_runs.h"

namespace terrace {
namespace {

constexpr double kFarApart = 1.15;

struct Compared {
  const PublishedRun* run = nullptr;
  double simulated = 0;  // tokens a second and device
  double measured() const { return run->tokens_per_second_per_device; }
};

TEST(PublishedPlansTest, PlansAreWithinEightPercentInTheMeanAndRankRunsRight) {
  const std::vector<PublishedRun> runs =
      *ReadPublishedRuns(TERRACE_TEST_DATA "/published_runs.csv");
  std::vector<Compared> compared;
  double error = 0, bias = 0;
  for (const PublishedRun& run : runs) {
    if (!run.not_expressible.empty() || run.beyond_the_spec ||
        run.tokens_per_second_per_device <= 0) {
      continue;
    }
    const auto simulated = SimulatedTokensPerSecond(run);
    ASSERT_TRUE(simulated.ok()) << run.id << ": " << simulated.status();
    compared.push_back({&run, *simulated});
    error += std::abs(*simulated / run.tokens_per_second_per_device - 1);
    bias += *simulated / run.tokens_per_second_per_device - 1;
  }
  ASSERT_EQ(compared.size(), 46u) << "every row that a job spec can say";
  EXPECT_LT(error / 46, 0.08);
  EXPECT_LT(std::abs(bias / 46), 0.05);  // too fast
  int pairs = 0;
  for (const Compared& slow : compared) {
    for (const Compared& fast : compared) {
      if (SourceOf(*slow.run) != SourceOf(*fast.run) ||
          slow.run->model_name != fast.run->model_name ||
          fast.measured() < kFarApart * slow.measured()) {
        continue;
      }
      ++pairs;
      EXPECT_LT(slow.simulated, fast.simulated) << slow.run->id << " and " << fast.run->id;
    }
  }
  EXPECT_GT(pairs, 40);
}

// The interval that plans print, of programs simulated with constants that were fitted without the
// run's source. The largest runs that no constant saw are left to tests/bench/calibrate.cc --blind;
// what plans cannot say yet is predicted by closed form.
TEST(PublishedPlansTest, TheIntervalOfPlansHoldsAsManyBlindRunsAsItSays) {
  const auto runs = *ReadPublishedRuns(TERRACE_TEST_DATA "/published_runs.csv");
  const auto unseen = *ReadPublishedRuns(TERRACE_TEST_DATA "/blind_runs.csv");
  std::vector<BlindPrediction> blind = LeaveOneSourceOut(runs);
  for (BlindPrediction& one : AsCatalogued(unseen)) {
    if (SourceOf(*one.run) == "MLV1") blind.push_back(std::move(one));
  }
  for (BlindPrediction& one : blind) {
    if (one.run->beyond_the_spec) continue;
    PublishedRun run = *one.run;
    run.profile = one.profile;
    const auto simulated = SimulatedTokensPerSecond(run);
    ASSERT_TRUE(simulated.ok()) << run.id << ": " << simulated.status();
    one.tokens_per_second_per_device = *simulated;
  }
  EXPECT_EQ(blind.size(), 69u);
  EXPECT_EQ(kBlindErrors.runs, runs.size() - 11 + unseen.size());
  EXPECT_NEAR(Coverage(blind, kBlindErrors.low, kBlindErrors.high), kBlindErrors.coverage, 0.06);
  EXPECT_NEAR(SummaryOf(blind).median, 0.078, 0.01);
  EXPECT_NEAR(SummaryOf(blind).mean, 0.083, 0.012);
}

}  // namespace
}  // namespace terrace
