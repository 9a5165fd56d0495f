// What the coordinator's /metrics says, and that nothing in it can be forged.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/metric_names.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

JobStats RunningJob(const std::string& id) {
  JobStats job{.id = id, .runs = true, .sequence_length = 128, .checkpoint_every_steps = 10};
  job.progress.set_step(7);
  job.progress.set_step_seconds(0.5);
  job.progress.set_tokens_per_second(1280);
  job.progress.set_eval_step(5);
  job.progress.set_eval_loss(3.25);
  job.progress.set_checkpoint_unix_ms(1'700'000'000'500);
  job.spent.seconds = {1, 2, 3, 4, 5, 6, 7, 8};
  job.spent.wall_seconds = 36;
  return job;
}

CoordinatorMetrics Of(ControlStats stats) {
  auto shared = std::make_shared<const ControlStats>(std::move(stats));
  return CoordinatorMetrics("1.2.3", [shared] { return shared; });
}

TEST(CoordinatorMetricsTest, TheTableFollowsTheConventionsOfPrometheus) {
  for (const Metric& metric : CoordinatorMetricTable()) EXPECT_EQ(WhyBadName(metric), "");
}

TEST(CoordinatorMetricsTest, EverySeriesIsInTheTable) {
  ControlStats stats;
  stats.shown.push_back(RunningJob("a-1"));
  CoordinatorMetrics metrics = Of(std::move(stats));
  metrics.ObserveRpc("Get", "OK", 0.01);
  EXPECT_THAT(FamiliesNotIn(metrics.Text(), CoordinatorMetricTable()), testing::IsEmpty());
}

TEST(CoordinatorMetricsTest, AJobsSeriesSayWhatItDoes) {
  ControlStats stats;
  stats.shown.push_back(RunningJob("a-1"));
  const std::string text = Of(std::move(stats)).Text();
  EXPECT_THAT(text, HasSubstr("terrace_job_samples_per_second{job=\"a-1\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("terrace_job_eval_loss{job=\"a-1\"} 3.25\n"));
  EXPECT_THAT(text,
              HasSubstr("terrace_job_checkpoint_timestamp_seconds{job=\"a-1\"} 1700000000.5"));
  EXPECT_THAT(text,
              HasSubstr("terrace_job_spent_seconds_total{job=\"a-1\",cause=\"repeated\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("terrace_job_wall_seconds_total{job=\"a-1\"} 36\n"));
  EXPECT_THAT(text, Not(HasSubstr("terrace_job_loss_scale{"))) << "it has none";
}

TEST(CoordinatorMetricsTest, WhatHasNotHappenedYetHasNoSeries) {
  ControlStats stats;
  stats.shown.push_back({.id = "a-1"});
  const std::string text = Of(std::move(stats)).Text();
  for (const char* name : {"terrace_job_eval_loss{", "terrace_job_first_step_timestamp_seconds{",
                           "terrace_job_checkpoint_timestamp_seconds{", "terrace_job_loss{"})
    EXPECT_THAT(text, Not(HasSubstr(name)));
}

TEST(CoordinatorMetricsTest, AHistogramCountsWhatIsAboveItsLastBound) {
  ControlStats stats;
  for (double seconds : {0.05, 0.5, 1e6}) stats.queue_seconds.Observe(seconds);
  const std::string text = Of(std::move(stats)).Text();
  EXPECT_THAT(text, HasSubstr("terrace_job_queue_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("terrace_job_queue_seconds_bucket{le=\"86400\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("terrace_job_queue_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("terrace_job_queue_seconds_count 3\n"));
}

TEST(CoordinatorMetricsTest, BeforeAnythingIsPublishedThereIsWhatRunsHere) {
  CoordinatorMetrics metrics("1.2.3", [] { return nullptr; });
  EXPECT_THAT(metrics.Text(),
              HasSubstr("terrace_build_info{program=\"terrace-coordinator\",version=\"1.2.3\"} 1"));
}

// A job's name is checked when it is submitted; were it not, it still would be a label's value.
TEST(CoordinatorMetricsTest, ALabelCannotBeForged) {
  ControlStats stats;
  stats.shown.push_back(RunningJob("a\"} 1\nterrace_forged{x=\"\\"));
  for (absl::string_view line : absl::StrSplit(Of(std::move(stats)).Text(), '\n'))
    EXPECT_FALSE(absl::StartsWith(line, "terrace_forged")) << line;
}

TEST(CoordinatorMetricsTest, AScrapeOfAThousandJobsIsBounded) {
  ControlStats stats;
  for (size_t i = 0; i < kJobsShownMax; ++i)
    stats.shown.push_back(RunningJob(absl::StrCat("a-", i)));
  CoordinatorMetrics metrics = Of(std::move(stats));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_GT(metrics.Text().size(), 1'000'000u);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", absl::StrCat(took.count()));
  EXPECT_LT(took.count(), 0.5) << "0.03 s on a quiet machine";
}

}  // namespace
}  // namespace terrace
