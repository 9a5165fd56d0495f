// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/dependencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

v1::Dependency After(const std::string& job,
                     v1::DependencyCondition condition = v1::DEPENDENCY_SUCCEEDED) {
  v1::Dependency dependency;
  dependency.set_job(job);
  dependency.set_condition(condition);
  return dependency;
}

Dependencies All(const std::vector<v1::Dependency>& all) { return {all.begin(), all.end()}; }

const std::map<std::string, v1::JobState, std::less<>> kJobs = {
    {"good", v1::SUCCEEDED}, {"bad", v1::FAILED}, {"off", v1::CANCELLED}, {"runs", v1::RUNNING}};

std::optional<v1::JobState> StateOf(std::string_view id) {
  const auto found = kJobs.find(id);
  return found == kJobs.end() ? std::nullopt : std::optional(found->second);
}

TEST(DependenciesTest, WhatEachConditionTakes) {
  const auto told = [](const v1::Dependency& one) {
    return std::pair(UnmetText(All({one}), StateOf), NeverMetText(All({one}), StateOf));
  };
  using Told = std::pair<std::string, std::string>;
  EXPECT_EQ(told(After("good")), Told("", ""));
  EXPECT_EQ(told(After("bad")),
            Told("", "job bad is FAILED, and this job was to start after it had succeeded"));
  EXPECT_EQ(told(After("off", v1::DEPENDENCY_FAILED)), Told("", ""));
  EXPECT_EQ(told(After("good", v1::DEPENDENCY_FAILED)),
            Told("", "job good is SUCCEEDED, and this job was to start after it had failed"));
  for (const char* ended : {"good", "bad", "off"})
    EXPECT_EQ(told(After(ended, v1::DEPENDENCY_ENDED)), Told("", "")) << ended;
  EXPECT_EQ(told(After("runs", v1::DEPENDENCY_ENDED)),
            Told("job runs (RUNNING) must end first", ""));
  EXPECT_EQ(
      UnmetText(All({After("runs"), After("good"), After("runs", v1::DEPENDENCY_FAILED)}), StateOf),
      "job runs (RUNNING) must succeed first, and job runs (RUNNING) must fail first");
}

TEST(DependenciesTest, WhatCannotBeIsRefused) {
  const auto refused = [](const std::vector<v1::Dependency>& all) {
    return CheckDependencies(All(all), StateOf);
  };
  EXPECT_TRUE(refused({After("good"), After("runs")}).ok());
  EXPECT_TRUE(absl::IsNotFound(refused({After("nobody")})));
  EXPECT_THAT(refused({After("nobody")}).message(), HasSubstr("after: no job nobody"));
  EXPECT_TRUE(absl::IsInvalidArgument(refused({After("runs"), After("runs")})));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused({After("bad")})));
  EXPECT_THAT(refused({After("bad")}).message(), HasSubstr("it would never start"));
  EXPECT_THAT(refused(std::vector<v1::Dependency>(kDependenciesMax + 1, After("runs"))).message(),
              HasSubstr("got 65 jobs, the most are 64"));
}

class DependentJobsTest : public ReconcilerTest {
 protected:
  std::string SubmitAfter(const std::string& name, const std::vector<v1::Dependency>& after) {
    const v1::JobSpec spec = Spec(name);
    const auto budget = reconciler_->BudgetNow(spec);
    const auto job = reconciler_->Submit(
        spec,
        budget.ok() ? PrepareFake(spec, *budget) : absl::StatusOr<PlannedJob>(budget.status()),
        {.after = All(after)});
    EXPECT_TRUE(job.ok()) << job.status();
    Settle();
    return job.ok() ? job->id() : "";
  }
  void EventsStored(std::string_view job) override { store_.full |= job == full_after_; }
  void Succeed(const std::string& job) {
    for (auto& [name, worker] : workers_) worker->SetAll(job, v1::RANK_SUCCEEDED);
    Settle();
  }

  std::string full_after_;  // the disk is full once something of this job is stored
};

TEST_F(DependentJobsTest, AJobStartsAfterThoseThatItWaitsForAlsoAfterARestart) {
  AddWorker("w0", 4);
  const std::string first = RunningJob(Spec("first")), second = RunningJob(Spec("second"));
  const std::string job = SubmitAfter("after", {After(first), After(second, v1::DEPENDENCY_ENDED)});
  EXPECT_EQ(JobNow(job).state(), v1::QUEUED) << "though devices are free";
  EXPECT_EQ(JobNow(job).reason(), v1::REASON_DEPENDENCY);
  EXPECT_THAT(JobNow(job).message(),
              HasSubstr("job first-1 (RUNNING) must succeed first, and job second-2 (RUNNING) must "
                        "end first"));
  EXPECT_EQ(JobNow(job).estimated_start_unix_ms(), 0);
  EXPECT_EQ(JobNow(job).estimate(), "not known: it may not take devices yet");
  EXPECT_EQ(JobNow(Submit(Spec("other"))).state(), v1::STARTING) << "nothing is kept for it";
  StartCoordinator();
  Connect(*workers_["w0"]);
  Succeed(first);
  EXPECT_EQ(JobNow(job).reason(), v1::REASON_DEPENDENCY);
  ASSERT_TRUE(reconciler_->Cancel(second, /*force=*/true).ok());
  Settle();
  EXPECT_EQ(JobNow(job).state(), v1::STARTING);
}

TEST_F(DependentJobsTest, AJobThatCanNeverStartEndsAndThoseBehindItToo) {
  AddWorker("w0", 1);
  const std::string first = RunningJob(Spec("first"));
  std::string last = first;
  std::vector<std::string> chain;
  for (int i = 0; i < 50; ++i) chain.push_back(last = SubmitAfter("next", {After(last)}));
  const std::string rescue = SubmitAfter("rescue", {After(chain[0], v1::DEPENDENCY_FAILED)});
  ASSERT_TRUE(reconciler_->Pause(chain[1], false).ok());
  ASSERT_TRUE(reconciler_->Cancel(first, /*force=*/true).ok());
  Settle();
  for (const std::string& job : chain) {
    EXPECT_EQ(JobNow(job).state(), v1::FAILED) << job;
    EXPECT_EQ(JobNow(job).reason(), v1::REASON_DEPENDENCY_FAILED);
  }
  EXPECT_EQ(JobNow(chain[0]).message(),
            "job first-1 is CANCELLED, and this job was to start after it had succeeded");
  EXPECT_EQ(JobNow(rescue).state(), v1::STARTING);
}

TEST_F(DependentJobsTest, ThatAJobCanNeverStartIsFoundAfterARestartToo) {
  AddWorker("w0", 1);
  const std::string first = RunningJob(Spec("first"));
  const std::string job = SubmitAfter("next", {After(first)});
  full_after_ = first;
  ASSERT_TRUE(reconciler_->Cancel(first, /*force=*/true).ok());
  EXPECT_EQ(JobNow(job).state(), v1::QUEUED) << "its end could not be stored";
  full_after_.clear();
  store_.full = false;
  StartCoordinator();
  Settle();
  EXPECT_EQ(JobNow(job).reason(), v1::REASON_DEPENDENCY_FAILED);
}

TEST_F(DependentJobsTest, AJobThatNoWorkerCouldHoldSaysBoth) {
  AddWorker("w0", 1);
  const std::string first = RunningJob(Spec("first"));
  v1::JobSpec wide = Spec("wide", 4);
  const auto job = reconciler_->Submit(wide, reconciler_->BudgetNow(wide).status(),
                                       {.after = All({After(first)})});
  ASSERT_TRUE(job.ok()) << job.status();
  Settle();
  const v1::Job now = JobNow(job->id());
  ASSERT_EQ(now.waits_size(), 2);
  EXPECT_EQ(now.waits(0).reason(), v1::REASON_NO_MATCHING_WORKER);
  EXPECT_EQ(now.waits(1).reason(), v1::REASON_DEPENDENCY);
  EXPECT_EQ(now.reason(), v1::REASON_NO_MATCHING_WORKER);
}

}  // namespace
}  // namespace terrace
