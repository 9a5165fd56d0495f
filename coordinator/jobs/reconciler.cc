// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/reconciler.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/jobs/job_summary.h"

namespace terrace {
namespace {

constexpr int64_t kProgressLookNs = 100'000'000;
constexpr size_t kProgressWritesASecond = 50;

// How many times `a_second` that are, at least once.
int64_t Times(size_t count, size_t a_second) {
  return static_cast<int64_t>(std::max<size_t>(1, (count + a_second - 1) / a_second));
}

}  // namespace

Reconciler::Reconciler(const Timing& timing, Store& store, const Clock& clock, ControlPorts& ports,
                       const QueueOptions& queue)
    : timing_(timing),
      store_(store),
      clock_(clock),
      ports_(ports),
      queue_(queue),
      cluster_(timing.cluster, clock.MonotonicNanos()) {}

absl::Status Reconciler::Load() {
  ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, store_.ListActiveJobs());
  ASSIGN_OR_RETURN(last_number_, store_.LastNumber());
  RETURN_IF_ERROR(PutAside(&jobs));
  ASSIGN_OR_RETURN(stats_.jobs, store_.CountEnded({}));
  for (v1::Job& job : jobs) {
    last_number_ = std::max(last_number_, NumberOf(job.id()));
    ++stats_.jobs[job.state()];
    ASSIGN_OR_RETURN(const int64_t sequence, store_.LastSequence(job.id()));
    const std::string id = job.id();
    ASSIGN_OR_RETURN(const GangSteps done, GangStepsOf(job, sequence));
    if (done.newest > job.progress().step()) job.mutable_progress()->set_step(done.newest);
    Entry& entry = jobs_[id] = {.job = std::move(job), .last_sequence = sequence, .done = done};
    LoadHistory(entry);
    NoteNew(entry);
    if (entry.job.dependencies_size() > 0) dependents_due_.insert(id);
  }
  ASSIGN_OR_RETURN(const std::vector<LearnedMemory> learned, store_.Learned());
  for (const LearnedMemory& one : learned) {
    learned_[{one.worker, one.shape}] = one.external_bytes;
  }
  ASSIGN_OR_RETURN(const std::vector<v1::Drain> drains, store_.Drains());
  for (const v1::Drain& drain : drains) drains_[drain.node()] = drain;
  ASSIGN_OR_RETURN(const std::vector<OwnerUsage> usages, store_.Usages());
  for (const OwnerUsage& one : usages)
    usages_[one.owner] = {static_cast<double>(one.device_ms) / 1000, one.unix_ms};
  log::Info("read back ", jobs_.size(), " jobs that have not ended");
  return absl::OkStatus();
}

// An earlier version stored no short rows of the jobs that it ended: they are stored here, some at
// a time.
absl::Status Reconciler::PutAside(std::vector<v1::Job>* jobs) {
  constexpr size_t kAtATime = 1000;
  Transaction transaction;
  for (const v1::Job& job : *jobs) {
    if (!HasEnded(job.state())) continue;
    transaction.ended.push_back(SummaryOf(job));
    if (transaction.ended.size() < kAtATime) continue;
    RETURN_IF_ERROR(Commit(transaction));
    transaction.ended.clear();
  }
  if (!transaction.ended.empty()) RETURN_IF_ERROR(Commit(transaction));
  std::erase_if(*jobs, [this](const v1::Job& job) {
    last_number_ = std::max(last_number_, NumberOf(job.id()));
    return HasEnded(job.state());
  });
  return absl::OkStatus();
}

// ---- clients ----------------------------------------------------------------------------------

absl::StatusOr<v1::Job> Reconciler::Cancel(std::string_view id, bool force) {
  return Ask(id, CancelAsked{force});
}

absl::StatusOr<v1::Job> Reconciler::Pause(std::string_view id, bool force) {
  ASSIGN_OR_RETURN(v1::Job job, Ask(id, PauseAsked{force}));
  // Its gang is gone, and with it what it was about to end for.
  if (Entry* entry = Find(id); entry != nullptr && job.state() == v1::PAUSED) entry->broken.clear();
  return job;
}

absl::StatusOr<v1::Job> Reconciler::Resume(std::string_view id) { return Ask(id, ResumeAsked{}); }

absl::StatusOr<v1::Job> Reconciler::Requeue(std::string_view id, bool force) {
  ASSIGN_OR_RETURN(v1::Job job, Ask(id, RequeueAsked{force}));
  if (Entry* entry = Find(id); entry != nullptr && job.state() == v1::QUEUED)
    entry->broken.clear();  // as of Pause
  return job;
}

absl::StatusOr<v1::Job> Reconciler::Ask(std::string_view id, const JobInput& input) {
  RETURN_IF_ERROR(Get(id).status());
  if (Find(id) == nullptr) {
    ASSIGN_OR_RETURN(const v1::Job ended, store_.GetJob(id));
    return Apply(ended, input, 0).status();  // says that it has ended
  }
  RETURN_IF_ERROR(Update(std::string(id), input));
  Pass();
  return Get(id);
}

absl::StatusOr<v1::GetMemoryResponse> Reconciler::Memory(std::string_view id) const {
  ASSIGN_OR_RETURN(const v1::Job job, Get(id));
  if (job.state() != v1::RUNNING) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", Absl(id), " is ", v1::JobState_Name(job.state()),
                     ": memory is shown of jobs that are RUNNING; what a rank that was killed held "
                     "is in memory_verdict.txt in its run directory"));
  }
  return MemoryOf(job);
}

// ---- writing ----------------------------------------------------------------------------------

Reconciler::Entry* Reconciler::Find(std::string_view id) {
  auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

void Reconciler::NoteUnwritten(Entry& entry) {
  entry.progress_unwritten = true;
  unwritten_.insert(entry.job.id());
  if (entry.progress_written_ns == 0) progress_look_ns_ = INT64_MIN;  // at once
}

v1::JobEvent Reconciler::StateEventOf(const v1::Job& job, int64_t sequence) const {
  v1::JobEvent event;
  event.set_job(job.id());
  event.set_sequence(sequence);
  event.set_epoch(job.epoch());
  event.set_unix_ms(clock_.UnixMillis());
  event.mutable_state()->set_state(job.state());
  event.mutable_state()->set_reason(job.reason());
  event.mutable_state()->set_message(job.message());
  if (job.has_hang()) *event.mutable_state()->mutable_hang() = job.hang();
  return event;
}

absl::Status Reconciler::Write(Entry& entry, v1::Job next, std::vector<StoredProgram> programs,
                               std::vector<LearnedMemory> learned, Durability durability) {
  FlushEvents().IgnoreError();  // they come before this change; without them it is still made
  Transaction transaction{
      .jobs = {next}, .programs = std::move(programs), .durability = durability};
  transaction.events.push_back(StateEventOf(next, entry.last_sequence + 1));
  transaction.learned = learned;
  const std::optional<OwnerUsage> released = Released(entry.job, next);
  if (released.has_value()) transaction.usages.push_back(*released);
  if (HasEnded(next.state())) {
    transaction.histories = {{next.id(), entry.history.Message().SerializeAsString()}};
    transaction.ended = {SummaryOf(next)};
  }
  RETURN_IF_ERROR(Commit(transaction));
  for (const LearnedMemory& one : learned) {
    int64_t& bytes = learned_[{one.worker, one.shape}];
    bytes = std::max(bytes, one.external_bytes);
  }
  if (!learned.empty()) ForgetBudgets();
  if (released.has_value()) {
    usages_[released->owner] = {static_cast<double>(released->device_ms) / 1000, released->unix_ms};
  }
  next.set_version(next.version() + 1);
  entry.job = std::move(next);
  entry.last_sequence += 1;
  entry.progress_unwritten = false;
  entry.waits = nullptr;
  unwritten_.erase(entry.job.id());
  return absl::OkStatus();
}

absl::Status Reconciler::Update(const std::string& id, const JobInput& input) {
  Entry* entry = Find(id);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no job ", id));
  ASSIGN_OR_RETURN(Transition transition, Apply(entry->job, input, clock_.UnixMillis()));
  if (!transition.changed) return absl::OkStatus();
  const v1::Job before = entry->job;
  std::vector<LearnedMemory> learned;
  if (cluster_.MayCountOthers(transition.learned_on, id)) {
    // Not for the job either: it would be planned with the others' memory as its own.
    transition.job.set_learned_external_bytes(entry->job.learned_external_bytes());
    log::Warn(
        "nothing is learned of the memory that job ", id, " holds on ", transition.learned_on,
        " outside its arenas: another job runs on the same GPU, and what the driver says of a GPU "
        "that jobs share counts them all");
  } else if (!transition.learned_on.empty()) {
    learned.push_back({.worker = transition.learned_on,
                       .shape = ShapeOf(transition.job.spec()),
                       .external_bytes = transition.job.learned_external_bytes()});
  }
  // A reason to wait is found again after a loss of power, so it is stored without waiting for the
  // disk: reasons of a long queue change often.
  const bool found_again = std::holds_alternative<MustWait>(input);
  RETURN_IF_ERROR(Write(*entry, std::move(transition.job), {}, std::move(learned),
                        found_again ? Durability::kBuffered : Durability::kSynced));
  const v1::Job& job = entry->job;
  log::Info("job ", id, " is ", v1::JobState_Name(job.state()), job.message().empty() ? "" : ": ",
            job.message());
  CountTransition(before, job);
  if (!HoldsDevices(job.state())) rendezvous_.Forget(id, job.epoch());
  NoteChange(before, *entry);
  if (HasEnded(job.state())) jobs_.erase(id);
  ports_.EventsStored(id);
  return absl::OkStatus();
}

absl::Status Reconciler::FlushEvents() {
  if (unstored_events_.empty()) return absl::OkStatus();
  Transaction transaction{.durability = Durability::kBuffered};
  transaction.events.swap(unstored_events_);
  if (absl::Status status = Commit(transaction); !status.ok()) {
    log::Warn(transaction.events.size(), " events are lost: ", status.message());
    return status;
  }
  std::set<std::string> jobs;
  for (const v1::JobEvent& event : transaction.events) jobs.insert(event.job());
  for (const std::string& job : jobs) ports_.EventsStored(job);
  return absl::OkStatus();
}

// A job is written whole: of many that train each is written less often, so that what is written a
// second is bounded. Only figures for people are older after a restart, until the next heartbeat.
void Reconciler::FlushProgress() {
  const int64_t now = clock_.MonotonicNanos();
  if (now < progress_look_ns_) return;
  progress_look_ns_ = now + kProgressLookNs;
  const int64_t apart = timing_.progress_ns * Times(unwritten_.size(), kProgressWritesASecond);
  Transaction transaction{.durability = Durability::kBuffered};
  std::vector<Entry*> written;
  for (const std::string& id : unwritten_) {
    Entry& entry = *Find(id);
    const bool checkpoint = entry.progress_written_ns == 0;
    if (!checkpoint && now - entry.progress_written_ns < apart) continue;
    if (checkpoint) transaction.durability = Durability::kSynced;
    transaction.jobs.push_back(entry.job);
    written.push_back(&entry);
  }
  if (written.empty()) return;
  if (absl::Status status = Commit(transaction); !status.ok()) {
    log::Warn("progress is not stored: ", status.message());
    return;
  }
  for (Entry* entry : written) {
    entry->job.set_version(entry->job.version() + 1);
    entry->progress_unwritten = false;
    entry->progress_written_ns = now;
    unwritten_.erase(entry->job.id());
  }
}

}  // namespace terrace
