// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/jobs/scheduler.h"

// From a job in the store that has no plan to one that has.
namespace terrace {
namespace {

Refused RefusalOf(const absl::Status& status) {
  const std::string message(Std(status.message()));
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return {v1::REASON_DOES_NOT_FIT, message};
    case absl::StatusCode::kInvalidArgument:
      return {v1::REASON_INVALID_SPEC, message};
    default:
      return {v1::REASON_INTERNAL, message};
  }
}

}  // namespace

// A job is planned here when no worker could hold it as it was submitted, or when those it was
// planned for have gone. That changes with the cluster, and with the jobs that wait for it.
void Reconciler::PlanJobs() {
  const int64_t now = clock_.MonotonicNanos();
  const bool is_due =
      plan_due_ || now >= plan_wake_ns_ || cluster_.members_version() != planned_version_;
  if (!is_due || !plan_pace_.IsDue(now)) return;
  plan_due_ = false;
  plan_wake_ns_ = kNeverNs;
  planned_version_ = cluster_.members_version();
  const std::set<std::string> unplanned = index_.unplanned();  // which changes on the way
  for (const std::string& id : unplanned) PlanOrWait(id, *Find(id));
  plan_pace_.Took(now, clock_.MonotonicNanos());
}

void Reconciler::PlanOrWait(const std::string& id, Entry& entry) {
  if (entry.planning) return;
  if (clock_.MonotonicNanos() < entry.plan_again_ns) {
    plan_wake_ns_ = std::min(plan_wake_ns_, entry.plan_again_ns);
    return;
  }
  const absl::StatusOr<Budget> budget = BudgetOf(entry.job);
  if (budget.ok()) {
    if (BudgetText(*budget) != entry.budget) StartPlanning(id, entry, *budget);
  } else if (!entry.job.has_plan()) {  // else PlaceJobs says what it waits for
    WaitStory story = NoWorkerStory(std::string(budget.status().message()));
    if (std::string first = WaitsFirst(entry.job); !first.empty())
      story.reasons.push_back({WaitFor::kDependency, std::move(first)});
    Wait(entry, std::make_shared<const WaitStory>(std::move(story)));
  }
}

void Reconciler::StartPlanning(const std::string& id, Entry& entry, const Budget& budget) {
  if (entry.job.state() != v1::PLANNING && !Update(id, PlanningStarted{}).ok()) {
    plan_due_ = true;
    return;
  }
  entry.planning = true;
  entry.budget = BudgetText(budget);
  ports_.Plan(
      entry.job.spec(), budget, entry.wanted,
      [this, id](absl::StatusOr<PlannedJob> planned) { FinishPlanning(id, std::move(planned)); });
}

void Reconciler::FinishPlanning(const std::string& id, absl::StatusOr<PlannedJob> planned) {
  Entry* entry = Find(id);
  if (entry == nullptr) return;  // cancelled meanwhile
  entry->planning = false;
  // A planner that died is no fault of the job's, as a rule.
  const bool lost = absl::IsAborted(planned.status()) && ++entry->planners_lost < kPlannersLostMax;
  absl::Status status;
  if (planned.ok()) {
    entry->planners_lost = 0;
    status = Commit({.programs = std::move(planned->programs)});
    if (status.ok()) status = Update(id, Planned{std::move(planned->plan)});
  } else if (lost || absl::IsUnavailable(planned.status())) {
    status = planned.status();
  } else if (entry->job.has_plan() && IsElastic(entry->job.spec())) {
    log::Warn("job ", id,
              " keeps the number of workers that it was planned for: ", planned.status().message());
    status = Update(id, Planned{entry->job.plan()});
  } else {
    status = Update(id, RefusalOf(planned.status()));
  }
  if (!status.ok()) {
    log::Warn("job ", id, " is to be planned again: ", status.message());
    entry->budget.clear();
    entry->plan_again_ns = clock_.MonotonicNanos() + timing_.plan_again_ns;
    plan_wake_ns_ = std::min(plan_wake_ns_, entry->plan_again_ns);
  }
  Pass();
}

}  // namespace terrace
