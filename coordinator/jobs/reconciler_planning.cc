// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/jobs/reconciler.h"

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
  const auto name_of = [](const std::string& path) {
    return absl::StripSuffix(Absl(path), "/");  // paths are normal otherwise
  };
  for (const auto& [id, entry] : jobs_) {
    if (name_of(entry.job.spec().checkpoint().directory()) != name_of(place)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint.directory: got ", directory,
        name_of(place) == name_of(directory) ? "" : absl::StrCat(", which is ", place),
        ", into which job ", id, " (", v1::JobState_Name(entry.job.state()),
        ") writes its checkpoints; name another, or submit again when that job has ended"));
  }
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
                                           Admission admission, std::string_view owner) {
  if (jobs_.size() >= kActiveJobsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kActiveJobsMax, " jobs have not ended yet, the most this coordinator holds: try later"));
  }
  RETURN_IF_ERROR(
      CheckDirectoryIsFree(spec.checkpoint().directory(), spec.checkpoint().directory()));
  const std::string id = absl::StrCat(spec.name(), "-", last_number_ + 1);
  Entry entry{.job = NewJob(id, spec, clock_.UnixMillis())};
  entry.job.set_owner(std::string(owner));
  JobInput input = planned.ok() ? JobInput(Planned{planned->plan})
                                : JobInput(MustWait{v1::REASON_NO_MATCHING_WORKER,
                                                    std::string(planned.status().message())});
  ASSIGN_OR_RETURN(Transition transition, Apply(entry.job, input, clock_.UnixMillis()));
  if (admission == Admission::kHeld) {  // in the same write: it is never placed in between
    const v1::Job queued = std::move(transition.job);
    ASSIGN_OR_RETURN(transition, Apply(queued, PauseAsked{}, clock_.UnixMillis()));
  }
  RETURN_IF_ERROR(Write(entry, std::move(transition.job),
                        planned.ok() ? planned->programs : std::vector<StoredProgram>()));
  ++last_number_;
  ++stats_.jobs[entry.job.state()];
  log::Info("accepted job ", id, owner.empty() ? "" : " of ", Absl(owner),
            admission == Admission::kHeld ? ", held" : "");
  jobs_[id] = std::move(entry);
  ports_.EventsStored(id);
  Pass();
  return Get(id);
}

// A job is planned here when no worker could hold it as it was submitted, or when those it was
// planned for have gone.
void Reconciler::PlanJobs() {
  std::vector<NodeView> nodes;  // filled for the first job that needs them
  for (auto& [id, entry] : jobs_) {
    const v1::Job& job = entry.job;
    const bool homeless = job.reason() == v1::REASON_NO_MATCHING_WORKER &&
                          (job.state() == v1::QUEUED || job.state() == v1::RECOVERING);
    if (entry.planning || clock_.MonotonicNanos() < entry.plan_again_ns ||
        !(homeless || job.state() == v1::PENDING || job.state() == v1::PLANNING)) {
      continue;
    }
    if (nodes.empty()) nodes = KnownNodes();
    const absl::StatusOr<Budget> budget = BudgetOf(job, &nodes);
    if (!budget.ok()) {
      if (job.has_plan()) continue;  // PlaceJobs says what it waits for
      const MustWait wait{v1::REASON_NO_MATCHING_WORKER, std::string(budget.status().message())};
      Update(id, wait).IgnoreError();  // tried again in the next pass
    } else if (Text(*budget) != entry.budget) {
      StartPlanning(entry, *budget);
    }
  }
}

void Reconciler::StartPlanning(Entry& entry, const Budget& budget) {
  const std::string id = entry.job.id();
  if (entry.job.state() != v1::PLANNING && !Update(id, PlanningStarted{}).ok()) return;
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
  }
  Pass();
}

}  // namespace terrace
