// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/life/time_limit.h"

// From a spec to a planned job in the store.
namespace terrace {
namespace {

std::string Text(const Budget& budget) {
  return absl::StrCat(budget.device, "/", budget.nodes, "/", budget.ranks, "/",
                      budget.threads_per_rank, "/", budget.device_memory_bytes, "/",
                      budget.external_bytes);
}

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

// Two jobs would write over each other's checkpoints. Ranks lock the directory, too: other
// coordinators know nothing of this one's jobs.
absl::Status Reconciler::CheckDirectoryIsFree(const std::string& directory,
                                              const std::string& place) const {
  if (directory.empty()) return absl::OkStatus();
  const std::string_view name = JobIndex::DirectoryName(directory);
  const std::string_view other = JobIndex::DirectoryName(place);
  const std::string_view writer = index_.WriterTo(other);
  if (writer.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint.directory: got ", directory,
      other == name ? "" : absl::StrCat(", which is ", place), ", into which job ", Absl(writer),
      " (", v1::JobState_Name(jobs_.find(writer)->second.job.state()),
      ") writes its checkpoints; name another, or submit again when that job has ended"));
}

absl::Status Reconciler::Admit(v1::JobSpec* spec) const {
  ASSIGN_OR_RETURN(const int64_t limit, AdmittedTimeLimit(*spec, queue_));
  spec->set_time_limit_seconds(limit);
  return absl::OkStatus();
}

std::vector<std::string> Reconciler::CheckpointDirectories() const {
  std::vector<std::string> directories;
  for (const auto& [id, entry] : jobs_) {
    const std::string& directory = entry.job.spec().checkpoint().directory();
    if (!directory.empty()) directories.push_back(directory);
  }
  return directories;
}

absl::StatusOr<v1::Job> Reconciler::Submit(const v1::JobSpec& spec,
                                           const absl::StatusOr<PlannedJob>& planned,
                                           const Submitted& as) {
  if (jobs_.size() >= kActiveJobsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kActiveJobsMax, " jobs have not ended yet, the most this coordinator holds: try later"));
  }
  RETURN_IF_ERROR(
      CheckDirectoryIsFree(spec.checkpoint().directory(), spec.checkpoint().directory()));
  RETURN_IF_ERROR(CheckAfter(as.after));
  RETURN_IF_ERROR(CheckMember(as.member, as.owner));
  const std::string id = absl::StrCat(spec.name(), "-", last_number_ + 1);
  Entry entry{.job = NewJob(id, spec, clock_.UnixMillis())};
  entry.job.set_owner(as.owner);
  *entry.job.mutable_dependencies() = as.after;
  if (as.member.size() > 0) {
    *entry.job.mutable_array() = as.member;
    if (as.member.array().empty()) entry.job.mutable_array()->set_array(id);
  }
  JobInput input = planned.ok() ? JobInput(Planned{planned->plan})
                                : JobInput(MustWait{v1::REASON_NO_MATCHING_WORKER,
                                                    std::string(planned.status().message())});
  ASSIGN_OR_RETURN(Transition transition, Apply(entry.job, input, clock_.UnixMillis()));
  if (as.held) {  // in the same write: it is never placed in between
    const v1::Job queued = std::move(transition.job);
    ASSIGN_OR_RETURN(transition, Apply(queued, PauseAsked{}, clock_.UnixMillis()));
  }
  RETURN_IF_ERROR(Write(entry, std::move(transition.job),
                        planned.ok() ? planned->programs : std::vector<StoredProgram>()));
  ++last_number_;
  ++stats_.jobs[entry.job.state()];
  log::Info("accepted job ", id, as.owner.empty() ? "" : " of ", as.owner, as.held ? ", held" : "");
  Entry& added = jobs_[id] = std::move(entry);
  NoteChange(added.job, added);
  ports_.EventsStored(id);
  Pass();
  return Get(id);
}

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
    if (Text(*budget) != entry.budget) StartPlanning(id, entry, *budget);
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
  entry.budget = Text(budget);
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
