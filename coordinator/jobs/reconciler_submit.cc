// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/life/time_limit.h"

// From a spec to a job in the store.
namespace terrace {

// Two jobs would write over each other's checkpoints. Ranks lock the directory, too: other
// coordinators know nothing of this one's jobs.
absl::Status Reconciler::CheckDirectoryIsFree(const std::string& directory,
                                              std::string_view place) const {
  if (directory.empty()) return absl::OkStatus();
  const std::string_view name = JobIndex::DirectoryName(directory);
  const std::string_view other = index_.WriterTo(name).empty() ? places_.At(place) : name;
  const std::string_view writer = index_.WriterTo(other);
  if (other.empty() || writer.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint.directory: got ", directory,
      other == name ? "" : absl::StrCat(", which is ", Absl(other)), ", into which job ",
      Absl(writer), " (", v1::JobState_Name(jobs_.find(writer)->second.job.state()),
      ") writes its checkpoints; name another, or submit again when that job has ended"));
}

std::vector<std::string> Reconciler::DirectoriesToPlace() {
  return places_.TakeUnknown(clock_.MonotonicNanos());
}

void Reconciler::NotePlace(std::string_view directory, std::string_view place) {
  places_.Note(JobIndex::DirectoryName(directory), place, clock_.MonotonicNanos());
}

bool Reconciler::DoubtPlace(const std::string& directory, std::string_view place) {
  const std::string_view other = places_.At(place);
  if (other.empty() || other == JobIndex::DirectoryName(directory)) return false;
  places_.Doubt(other);
  return true;
}

absl::Status Reconciler::Admit(v1::JobSpec* spec) const {
  ASSIGN_OR_RETURN(const int64_t limit, AdmittedTimeLimit(*spec, queue_));
  spec->set_time_limit_seconds(limit);
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> Reconciler::Submit(const v1::JobSpec& spec,
                                           const absl::StatusOr<PlannedJob>& planned,
                                           const Submitted& as) {
  const SubmittedJob job{.spec = spec, .planned = planned, .as = as};
  ASSIGN_OR_RETURN(const std::string id, std::move(SubmitAll({&job, 1}).front()));
  Pass();
  return Get(id);
}

std::vector<absl::StatusOr<std::string>> Reconciler::SubmitAll(
    absl::Span<const SubmittedJob> jobs) {
  std::vector<absl::StatusOr<std::string>> results;
  while (results.size() < jobs.size()) SubmitTogether(jobs.subspan(results.size()), &results);
  return results;
}

// Of two jobs with one directory the second is checked when the first is stored.
void Reconciler::SubmitTogether(absl::Span<const SubmittedJob> jobs,
                                std::vector<absl::StatusOr<std::string>>* results) {
  Transaction transaction;
  std::vector<size_t> taken;            // of `jobs`, in the order of the transaction
  std::set<std::string> directories;    // and places, of these
  std::set<std::string_view> programs;  // of these
  const size_t first = results->size();
  for (size_t i = 0; i < jobs.size() && taken.size() < kSubmittedTogetherMax; ++i) {
    const SubmittedJob& job = jobs[i];
    const std::string directory(JobIndex::DirectoryName(job.spec.checkpoint().directory()));
    if (!directory.empty() && !directories.insert(directory).second) break;
    if (!job.as.place.empty() && !directories.insert(job.as.place).second) break;
    absl::StatusOr<v1::Job> made = MakeJob(job, taken.size());
    results->push_back(made.ok() ? absl::StatusOr<std::string>(made->id()) : made.status());
    if (!made.ok()) continue;
    taken.push_back(i);
    transaction.events.push_back(StateEventOf(*made, 1));
    transaction.jobs.push_back(*std::move(made));
    if (!job.planned.ok()) continue;
    for (const StoredProgram& program : job.planned->programs) {
      if (programs.insert(program.sha256).second) transaction.programs.push_back(program);
    }
  }
  if (taken.empty()) return;
  FlushEvents().IgnoreError();  // as of Write
  const absl::Status stored = Commit(transaction);
  for (size_t i = 0; i < taken.size(); ++i) {
    if (stored.ok()) {
      Accept(std::move(transaction.jobs[i]), jobs[taken[i]].as);
    } else {
      (*results)[first + taken[i]] = stored;
    }
  }
}

absl::StatusOr<v1::Job> Reconciler::MakeJob(const SubmittedJob& submitted, size_t before) const {
  const auto& [spec, planned, as] = submitted;
  if (jobs_.size() + before >= kActiveJobsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kActiveJobsMax, " jobs have not ended yet, the most this coordinator holds: try later"));
  }
  RETURN_IF_ERROR(CheckDirectoryIsFree(spec.checkpoint().directory(), as.place));
  RETURN_IF_ERROR(CheckAfter(as.after));
  RETURN_IF_ERROR(CheckMember(as.member, as.owner));
  const int64_t number = last_number_ + 1 + static_cast<int64_t>(before);
  const std::string id = absl::StrCat(spec.name(), "-", number);
  v1::Job job = NewJob(id, spec, clock_.UnixMillis());
  job.set_owner(as.owner);
  *job.mutable_dependencies() = as.after;
  if (as.member.size() > 0) {
    *job.mutable_array() = as.member;
    if (as.member.array().empty()) job.mutable_array()->set_array(id);
  }
  JobInput input = planned.ok() ? JobInput(Planned{planned->plan})
                                : JobInput(MustWait{v1::REASON_NO_MATCHING_WORKER,
                                                    std::string(planned.status().message())});
  ASSIGN_OR_RETURN(Transition transition, Apply(job, input, clock_.UnixMillis()));
  if (!as.held) return std::move(transition.job);
  // In the same write: it is never placed in between.
  const v1::Job queued = std::move(transition.job);
  ASSIGN_OR_RETURN(transition, Apply(queued, PauseAsked{}, clock_.UnixMillis()));
  return std::move(transition.job);
}

void Reconciler::Accept(v1::Job stored, const Submitted& as) {
  stored.set_version(stored.version() + 1);
  const std::string id = stored.id();
  last_number_ = NumberOf(id);
  ++stats_.jobs[stored.state()];
  log::Info("accepted job ", id, as.owner.empty() ? "" : " of ", as.owner, as.held ? ", held" : "");
  Entry& entry = jobs_[id] = {.job = std::move(stored), .last_sequence = 1};
  NoteNew(entry);
  NotePlace(entry.job.spec().checkpoint().directory(), as.place);
  ports_.EventsStored(id);
}

}  // namespace terrace
