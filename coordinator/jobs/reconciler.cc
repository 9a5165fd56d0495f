// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/reconciler.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/program_hash.h"

namespace terrace {
namespace {

// Of SentKey; the values of Action::Kind come first.
constexpr int64_t kKill = 100;

// "gpt2-books-17" -> 17.
int64_t NumberOf(std::string_view id) {
  const std::string_view digits = id.substr(id.rfind('-') + 1);
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

std::string Text(const Budget& budget) {
  return absl::StrCat(budget.nodes, "/", budget.ranks, "/", budget.threads_per_rank, "/",
                      budget.device_memory_bytes);
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

std::vector<StoredProgram> Serialize(const Prepared& prepared) {
  std::vector<StoredProgram> programs;
  for (const v1::Program& program : prepared.programs) {
    StoredProgram& stored = programs.emplace_back();
    stored.bytes = SerializeProgram(program);
    stored.sha256 = Sha256Hex(stored.bytes);
  }
  return programs;
}

}  // namespace

Reconciler::Reconciler(const Timing& timing, Store& store, const Clock& clock, ControlPorts& ports)
    : timing_(timing),
      store_(store),
      clock_(clock),
      ports_(ports),
      cluster_(timing.cluster, clock.MonotonicNanos()) {}

absl::Status Reconciler::Load() {
  ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, store_.ListJobs());
  for (v1::Job& job : jobs) {
    last_number_ = std::max(last_number_, NumberOf(job.id()));
    ++stats_.jobs[job.state()];
    if (HasEnded(job.state())) continue;
    ASSIGN_OR_RETURN(const int64_t sequence, store_.LastSequence(job.id()));
    const std::string id = job.id();
    jobs_[id] = {.job = std::move(job), .last_sequence = sequence};
  }
  log::Info("read back ", jobs.size(), " jobs, ", jobs_.size(), " of them not ended");
  return absl::OkStatus();
}

// ---- clients ----------------------------------------------------------------------------------

absl::StatusOr<v1::Job> Reconciler::Submit(const v1::JobSpec& spec,
                                           const absl::StatusOr<Prepared>& prepared) {
  if (jobs_.size() >= kActiveJobsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kActiveJobsMax, " jobs have not ended yet, the most this coordinator holds: try later"));
  }
  const std::string id = absl::StrCat(spec.name(), "-", last_number_ + 1);
  Entry entry{.job = NewJob(id, spec, clock_.UnixMillis())};
  JobInput input = prepared.ok() ? JobInput(Planned{prepared->plan})
                                 : JobInput(MustWait{v1::REASON_NO_MATCHING_WORKER,
                                                     std::string(prepared.status().message())});
  ASSIGN_OR_RETURN(Transition transition, Apply(entry.job, input, clock_.UnixMillis()));
  RETURN_IF_ERROR(Write(entry, std::move(transition.job),
                        prepared.ok() ? Serialize(*prepared) : std::vector<StoredProgram>()));
  ++last_number_;
  ++stats_.jobs[v1::QUEUED];
  jobs_[id] = std::move(entry);
  log::Info("accepted job ", id);
  ports_.EventsStored(id);
  Pass();
  return Get(id);
}

absl::StatusOr<v1::Job> Reconciler::Cancel(std::string_view id, bool force) {
  RETURN_IF_ERROR(Get(id).status());
  if (Find(id) == nullptr) {
    ASSIGN_OR_RETURN(const v1::Job ended, store_.GetJob(id));
    return Apply(ended, CancelAsked{force}, 0).status();  // says that it has ended
  }
  RETURN_IF_ERROR(Update(std::string(id), CancelAsked{force}));
  Pass();
  return Get(id);
}

absl::StatusOr<v1::Job> Reconciler::Get(std::string_view id) const {
  auto found = jobs_.find(id);
  if (found != jobs_.end()) return found->second.job;
  absl::StatusOr<v1::Job> stored = store_.GetJob(id);
  if (!absl::IsNotFound(stored.status())) return stored;
  return absl::NotFoundError(
      absl::StrCat("no job ", Absl(id), ": `terrace ls --all` lists those there are"));
}

absl::StatusOr<std::vector<v1::Job>> Reconciler::List(bool all) const {
  ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, store_.ListJobs());
  if (!all) std::erase_if(jobs, [](const v1::Job& job) { return HasEnded(job.state()); });
  for (v1::Job& job : jobs) {  // progress is newer here than in the store
    auto found = jobs_.find(job.id());
    if (found != jobs_.end()) job = found->second.job;
  }
  return jobs;
}

absl::StatusOr<Budget> Reconciler::BudgetNow(const v1::JobSpec& spec) const {
  return BudgetFor(spec, cluster_.Known(clock_.MonotonicNanos()));
}

std::vector<v1::Node> Reconciler::Nodes() const { return cluster_.List(clock_.MonotonicNanos()); }

ControlStats Reconciler::Stats() const {
  ControlStats stats = stats_;
  for (const auto& [id, entry] : jobs_) {
    const v1::Job& job = entry.job;
    if (job.state() == v1::QUEUED || job.state() == v1::RECOVERING) ++stats.pending[job.reason()];
    if (job.state() != v1::RUNNING || job.progress().arena_bytes() == 0) continue;
    int64_t predicted = 0;
    for (const v1::StageMemory& stage : job.plan().memory()) {
      predicted = std::max(predicted, stage.arena_bytes());
    }
    stats.plan_memory_error_bytes[id] = job.progress().arena_bytes() - predicted;
  }
  for (const v1::Node& node : Nodes()) ++stats.nodes[node.state()];
  return stats;
}

// ---- jobs -------------------------------------------------------------------------------------

Reconciler::Entry* Reconciler::Find(std::string_view id) {
  auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

v1::JobEvent Reconciler::StateEventOf(const v1::Job& job, int64_t sequence) const {
  v1::JobEvent event;
  event.set_job(job.id());
  event.set_sequence(sequence);
  event.set_unix_ms(clock_.UnixMillis());
  event.mutable_state()->set_state(job.state());
  event.mutable_state()->set_reason(job.reason());
  event.mutable_state()->set_message(job.message());
  return event;
}

absl::Status Reconciler::Write(Entry& entry, v1::Job next, std::vector<StoredProgram> programs) {
  Transaction transaction{.jobs = {next}, .programs = std::move(programs)};
  transaction.events.push_back(StateEventOf(next, entry.last_sequence + 1));
  RETURN_IF_ERROR(store_.Commit(transaction));
  next.set_version(next.version() + 1);
  entry.job = std::move(next);
  entry.last_sequence += 1;
  entry.progress_unwritten = false;
  return absl::OkStatus();
}

absl::Status Reconciler::Update(const std::string& id, const JobInput& input) {
  Entry* entry = Find(id);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no job ", id));
  ASSIGN_OR_RETURN(Transition transition, Apply(entry->job, input, clock_.UnixMillis()));
  if (!transition.changed) return absl::OkStatus();
  const v1::JobState before = entry->job.state();
  RETURN_IF_ERROR(Write(*entry, std::move(transition.job), {}));
  const v1::Job& job = entry->job;
  log::Info("job ", id, " is ", v1::JobState_Name(job.state()), job.message().empty() ? "" : ": ",
            job.message());
  CountTransition(before, job.state(), job.reason());
  if (!HoldsDevices(job.state())) rendezvous_.Forget(id, job.epoch());
  if (HasEnded(job.state())) jobs_.erase(id);
  ports_.EventsStored(id);
  return absl::OkStatus();
}

void Reconciler::CountTransition(v1::JobState from, v1::JobState to, v1::Reason reason) {
  --stats_.jobs[from];
  ++stats_.jobs[to];
  if (to == v1::RECOVERING && from != v1::RECOVERING) ++stats_.restarts[reason];
}

std::vector<RankView> Reconciler::Views(const v1::Job& job) const {
  std::vector<RankView> views;
  for (const v1::Placement::Rank& placed : job.placement().ranks()) {
    views.push_back(cluster_.View(placed, job.id(), job.epoch(), clock_.MonotonicNanos()));
  }
  return views;
}

// Rank 0 speaks for the gang. Only a new checkpoint is written at once: it is what a restart and
// its bound depend on.
void Reconciler::TakeProgress(Entry& entry, const std::vector<RankView>& ranks) {
  if (ranks.empty() || ranks[0].presence != Presence::kReported) return;
  v1::Progress progress = ranks[0].report.progress();
  for (const RankView& view : ranks) {
    progress.set_external_bytes(
        std::max(progress.external_bytes(), view.report.progress().external_bytes()));
  }
  const v1::Progress& known = entry.job.progress();
  // A restarted rank knows no checkpoint of its own yet.
  if (progress.checkpoint_step() < known.checkpoint_step()) {
    progress.set_checkpoint_step(known.checkpoint_step());
    progress.set_checkpoint(known.checkpoint());
  }
  if (progress.steps() == 0) progress.set_steps(known.steps());
  const bool new_checkpoint = progress.checkpoint_step() > known.checkpoint_step();
  if (progress.SerializeAsString() == known.SerializeAsString()) return;
  absl::StatusOr<Transition> transition = Apply(entry.job, Progressed{progress}, 0);
  if (!transition.ok()) return;
  entry.job = std::move(transition->job);
  entry.progress_unwritten = true;
  if (new_checkpoint) entry.progress_written_ns = 0;
}

void Reconciler::FlushProgress() {
  const int64_t now = clock_.MonotonicNanos();
  Transaction transaction{.durability = Durability::kBuffered};
  std::vector<Entry*> written;
  for (auto& [id, entry] : jobs_) {
    if (!entry.progress_unwritten) continue;
    const bool checkpoint = entry.progress_written_ns == 0;
    if (!checkpoint && now - entry.progress_written_ns < timing_.progress_ns) continue;
    if (checkpoint) transaction.durability = Durability::kSynced;
    transaction.jobs.push_back(entry.job);
    written.push_back(&entry);
  }
  if (written.empty()) return;
  if (absl::Status status = store_.Commit(transaction); !status.ok()) {
    log::Warn("progress is not stored: ", status.message());
    return;
  }
  for (Entry* entry : written) {
    entry->job.set_version(entry->job.version() + 1);
    entry->progress_unwritten = false;
    entry->progress_written_ns = now;
  }
}

// ---- the pass ---------------------------------------------------------------------------------

void Reconciler::Pass() {
  for (const std::string& name : cluster_.Expire(clock_.MonotonicNanos())) {
    log::Warn("worker ", name, " is lost: no heartbeat for ",
              timing_.cluster.lost_after_ns / 1'000'000, " ms");
  }
  ObserveJobs();
  StopStrays();
  PlanJobs();
  PlaceJobs();
  AnswerWaits();
  FlushProgress();
}

void Reconciler::ObserveJobs() {
  std::vector<std::string> ids;  // Update may erase
  for (const auto& [id, entry] : jobs_) {
    if (HoldsDevices(entry.job.state()) || entry.job.state() == v1::RECOVERING) ids.push_back(id);
  }
  for (const std::string& id : ids) {
    Entry* entry = Find(id);
    const std::vector<RankView> ranks = Views(entry->job);
    if (HoldsDevices(entry->job.state())) TakeProgress(*entry, ranks);
    if (absl::Status status = Update(id, RanksObserved{ranks}); !status.ok()) {
      log::Warn("job ", id, " cannot be updated: ", status.message());
    }
    entry = Find(id);
    if (entry != nullptr) Act(entry->job, ranks);
  }
}

void Reconciler::Act(const v1::Job& job, const std::vector<RankView>& ranks) {
  for (const Action& action : ActionsFor(job, ranks)) {
    v1::CoordinatorMessage message;
    switch (action.kind) {
      case Action::Kind::kStart:
        message = StartMessage(job, action);
        break;
      case Action::Kind::kGo:
        message.mutable_go()->set_job(job.id());
        message.mutable_go()->set_epoch(job.epoch());
        break;
      case Action::Kind::kStopWithCheckpoint:
        message.mutable_stop()->set_job(job.id());
        message.mutable_stop()->set_epoch(job.epoch());
        message.mutable_stop()->set_checkpoint(true);
        break;
    }
    SendOnce({action.worker, job.id(), job.epoch(), static_cast<int64_t>(action.kind)}, message);
  }
}

v1::CoordinatorMessage Reconciler::StartMessage(const v1::Job& job, const Action& action) const {
  v1::CoordinatorMessage message;
  const uint32_t ranks = static_cast<uint32_t>(job.placement().ranks_size());
  const uint32_t stages = static_cast<uint32_t>(std::max(1, job.plan().program_sha256_size()));
  const uint32_t ranks_per_stage = std::max<uint32_t>(1, ranks / stages);
  for (const v1::Placement::Rank& placed : job.placement().ranks()) {
    if (std::find(action.ranks.begin(), action.ranks.end(), placed.rank()) == action.ranks.end()) {
      continue;
    }
    v1::RankConfig* config = message.mutable_start()->add_ranks();
    config->set_job(job.id());
    config->set_epoch(job.epoch());
    config->set_rank(placed.rank());
    config->set_ranks(ranks);
    config->set_device(placed.device());
    config->set_threads(job.plan().layout().threads_per_rank());
    *config->mutable_spec() = job.spec();
    const uint32_t stage = std::min(placed.rank() / ranks_per_stage, stages - 1);
    if (job.plan().program_sha256_size() > 0) {
      config->set_program_sha256(job.plan().program_sha256(static_cast<int>(stage)));
    }
    config->set_local_ranks(static_cast<uint32_t>(
        std::count_if(job.placement().ranks().begin(), job.placement().ranks().end(),
                      [&](const auto& other) { return other.worker() == placed.worker(); })));
  }
  return message;
}

void Reconciler::SendOnce(const SentKey& key, const v1::CoordinatorMessage& message) {
  const int64_t now = clock_.MonotonicNanos();
  auto [sent, inserted] = sent_ns_.try_emplace(key, now);
  if (!inserted && now - sent->second < timing_.repeat_ns) return;
  sent->second = now;
  ports_.Send(key.worker, message);
}

// Also how a worker learns that it may forget ranks that have ended.
void Reconciler::StopStrays() {
  const int64_t now = clock_.MonotonicNanos();
  std::erase_if(sent_ns_, [&](const auto& sent) { return now - sent.second > timing_.repeat_ns; });
  for (const auto& [worker, report] : cluster_.Reports()) {
    const Entry* entry = Find(report->job());
    if (!IsStray(entry == nullptr ? nullptr : &entry->job, *report)) continue;
    v1::CoordinatorMessage message;
    message.mutable_stop()->set_job(report->job());
    message.mutable_stop()->set_epoch(report->epoch());
    SendOnce({worker, report->job(), report->epoch(), kKill}, message);
  }
}

bool Reconciler::HasLiveRanks(const v1::Job& job) const {
  for (const auto& [worker, report] : cluster_.Reports()) {
    if (report->job() == job.id()) return true;
  }
  return false;
}

// Ready nodes with the devices of reported ranks and of placements whose ranks are not reported
// yet.
std::vector<NodeView> Reconciler::FreeNodes() const {
  std::vector<NodeView> nodes = cluster_.Known(clock_.MonotonicNanos());
  for (const auto& [id, entry] : jobs_) {
    if (!HoldsDevices(entry.job.state())) continue;
    for (const v1::Placement::Rank& placed : entry.job.placement().ranks()) {
      for (NodeView& node : nodes) {
        if (node.name == placed.worker()) node.used.insert(placed.device());
      }
    }
  }
  return nodes;
}

void Reconciler::PlaceJobs() {
  std::vector<const v1::Job*> waiting;
  for (const auto& [id, entry] : jobs_) {
    const v1::Job& job = entry.job;
    if (!job.has_plan() || (job.state() != v1::QUEUED && job.state() != v1::RECOVERING)) continue;
    if (job.state() == v1::RECOVERING && HasLiveRanks(job)) continue;  // its old ranks end first
    waiting.push_back(&job);
  }
  if (waiting.empty()) return;
  std::sort(waiting.begin(), waiting.end(), [](const v1::Job* a, const v1::Job* b) {
    return NumberOf(a->id()) < NumberOf(b->id());
  });
  bool placed = false;
  for (const Decision& decision : Schedule(waiting, FreeNodes())) {
    const bool starts = decision.placement.ranks_size() > 0;
    JobInput input = starts ? JobInput(Placed{decision.placement})
                            : JobInput(MustWait{decision.reason, decision.message});
    if (absl::Status status = Update(decision.job, input); !status.ok()) {
      log::Warn("job ", decision.job, " cannot be placed: ", status.message());
    }
    placed |= starts;
  }
  if (placed) ObserveJobs();  // sends the start commands
}

// ---- planning ---------------------------------------------------------------------------------

// A job is planned here when no worker could hold it as it was submitted, or when those it was
// planned for have gone.
void Reconciler::PlanJobs() {
  for (auto& [id, entry] : jobs_) {
    const v1::Job& job = entry.job;
    const bool homeless = job.reason() == v1::REASON_NO_MATCHING_WORKER &&
                          (job.state() == v1::QUEUED || job.state() == v1::RECOVERING);
    if (entry.planning ||
        !(homeless || job.state() == v1::PENDING || job.state() == v1::PLANNING)) {
      continue;
    }
    const absl::StatusOr<Budget> budget = BudgetNow(job.spec());
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
  ports_.Plan(entry.job.spec(), budget, [this, id](absl::StatusOr<Prepared> prepared) {
    FinishPlanning(id, std::move(prepared));
  });
}

void Reconciler::FinishPlanning(const std::string& id, absl::StatusOr<Prepared> prepared) {
  Entry* entry = Find(id);
  if (entry == nullptr) return;  // cancelled meanwhile
  entry->planning = false;
  absl::Status status;
  if (prepared.ok()) {
    status = store_.Commit({.programs = Serialize(*prepared)});
    if (status.ok()) status = Update(id, Planned{std::move(prepared->plan)});
  } else {
    status = Update(id, RefusalOf(prepared.status()));
  }
  if (!status.ok()) {
    log::Warn("job ", id, " is to be planned again: ", status.message());
    entry->budget.clear();
  }
  Pass();
}

// ---- workers ----------------------------------------------------------------------------------

absl::Status Reconciler::WorkerRegistered(const v1::Node& node, uint64_t session) {
  RETURN_IF_ERROR(cluster_.Register(node, session, clock_.MonotonicNanos()));
  log::Info("worker ", node.name(), " at ", node.address(), " registered ", node.devices(),
            " devices");
  // What was sent to its last connection may be lost.
  std::erase_if(sent_ns_, [&](const auto& sent) { return sent.first.worker == node.name(); });
  return absl::OkStatus();
}

absl::Status Reconciler::WorkerSaid(std::string_view worker, uint64_t session,
                                    const v1::WorkerMessage& message) {
  switch (message.message_case()) {
    case v1::WorkerMessage::kHeartbeat:
      return cluster_.Heartbeat(worker, session, message.heartbeat(), clock_.MonotonicNanos(),
                                clock_.UnixMillis());
    case v1::WorkerMessage::kEvent:
      return StoreEvent(message.event());
    case v1::WorkerMessage::kKvSet: {
      const Entry* entry = Find(message.kv_set().job());
      if (entry == nullptr || entry->job.epoch() != message.kv_set().epoch()) {
        return absl::OkStatus();  // fenced: of a gang that is no more
      }
      return rendezvous_.Set(message.kv_set());
    }
    case v1::WorkerMessage::kKvWait: {
      const Entry* entry = Find(message.kv_wait().job());
      if (entry == nullptr || entry->job.epoch() != message.kv_wait().epoch()) {
        return absl::OkStatus();
      }
      return rendezvous_.Wait(worker, message.kv_wait(), clock_.MonotonicNanos());
    }
    case v1::WorkerMessage::kNeedProgram:
      return SendProgram(worker, message.need_program().sha256());
    default:
      return absl::InvalidArgumentError("a worker message of an unknown kind");
  }
}

void Reconciler::WorkerGone(std::string_view worker, uint64_t session) {
  cluster_.Disconnect(worker, session);
}

absl::Status Reconciler::StoreEvent(const v1::JobEvent& event) {
  Entry* entry = Find(event.job());
  if (entry == nullptr) return absl::OkStatus();  // ended meanwhile
  Transaction transaction{.durability = Durability::kBuffered};
  v1::JobEvent& stored = transaction.events.emplace_back(event);
  stored.set_sequence(entry->last_sequence + 1);
  if (absl::Status status = store_.Commit(transaction); !status.ok()) {
    log::Warn("an event of job ", event.job(), " is not stored: ", status.message());
    return absl::OkStatus();  // the worker cannot help it
  }
  entry->last_sequence += 1;
  ports_.EventsStored(event.job());
  return absl::OkStatus();
}

absl::Status Reconciler::SendProgram(std::string_view worker, std::string_view sha256) {
  absl::StatusOr<std::string> bytes = store_.GetProgram(sha256);
  if (!bytes.ok()) {
    log::Warn("worker ", Absl(worker), " asks for program ", Absl(sha256), ": ",
              bytes.status().message());
    return absl::OkStatus();
  }
  const int64_t total = static_cast<int64_t>(bytes->size());
  for (int64_t offset = 0; offset < total; offset += kProgramChunkBytes) {
    v1::CoordinatorMessage message;
    v1::ProgramChunk* chunk = message.mutable_program();
    chunk->set_sha256(std::string(sha256));
    chunk->set_offset(offset);
    chunk->set_total_bytes(total);
    chunk->set_data(bytes->substr(static_cast<size_t>(offset), kProgramChunkBytes));
    ports_.Send(worker, message);
  }
  return absl::OkStatus();
}

void Reconciler::AnswerWaits() {
  for (Rendezvous::Answer& answer : rendezvous_.TakeAnswers(clock_.MonotonicNanos())) {
    v1::CoordinatorMessage message;
    *message.mutable_kv_values() = std::move(answer.values);
    ports_.Send(answer.worker, message);
  }
}

}  // namespace terrace
