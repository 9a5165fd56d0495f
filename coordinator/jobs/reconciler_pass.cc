// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/layout/rules.h"
#include "coordinator/life/gang_failure.h"
#include "proto/program/grid.h"
#include "proto/spec_changes.h"

// One pass: observe, stop, plan, fall back, place, grow, answer, write.
namespace terrace {
namespace {

// Of SentKey; the values of Action::Kind come first.
constexpr int64_t kKill = 100;
// Of the longest step, with each report: one that was slow once is forgotten.
constexpr double kLongestStepKept = 0.95;

}  // namespace

void Reconciler::Pass() {
  if (closed_) return;
  const int64_t start_ns = clock_.MonotonicNanos();
  FlushEvents().IgnoreError();  // it has said so
  for (const std::string& name : cluster_.Expire(clock_.MonotonicNanos())) {
    TouchJobsOn(name);
    log::Warn("worker ", name, " is lost: no heartbeat for ",
              cluster_.BeatOf(name).lost_after_ns / 1'000'000, " ms");
  }
  for (const Cluster::PeerCheck& check : cluster_.PeerChecks(clock_.MonotonicNanos())) {
    v1::CoordinatorMessage message;
    *message.mutable_check_peer() = check.check;
    ports_.Send(check.from, message);
  }
  ObserveJobs();
  StopStrays();
  PlanJobs();
  FindSmallerLayouts();
  EndUnmet();
  PlaceJobs();
  GrowJobs();
  AnswerWaits();
  FlushProgress();
  FlushHistories();
  stats_.pass_seconds.Observe(static_cast<double>(clock_.MonotonicNanos() - start_ns) * 1e-9);
}

std::vector<RankView> Reconciler::Views(const v1::Job& job) const {
  std::vector<RankView> views;
  for (const v1::Placement::Rank& placed : job.placement().ranks()) {
    views.push_back(cluster_.View(placed, job.id(), job.epoch(), clock_.MonotonicNanos()));
  }
  return views;
}

void Reconciler::ObserveJob(const std::string& id, Entry& entry) {
  std::vector<RankView> ranks = Views(entry.job);
  if (HoldsDevices(entry.job.state())) TakeProgress(entry, ranks);
  if (entry.job.state() == v1::RUNNING) {
    TakeMemory(entry);
    TellSlowRanks(entry, ranks);
  }
  LookAt(entry, std::min(entry.look_ns, entry.looked_ns + NextLookNs(entry, ranks)));
  if (HearsLastWords(entry, ranks)) return;
  if (!entry.broken.empty()) ranks = WithLastWords(entry.broken, ranks);
  if (absl::Status status = Update(id, Observed(entry, ranks)); !status.ok()) {
    log::Warn("job ", id, " cannot be updated: ", status.message());
    if (!entry.broken.empty()) return;  // as it was, for the next pass
  }
  Entry* left = Find(id);
  if (left == nullptr) return;
  left->broken.clear();
  TakeLarger(id, *left);
  NoteHang(*left);
  Act(left->job, ranks, DrainActionNow(left->job));
}

RanksObserved Reconciler::Observed(Entry& entry, const std::vector<RankView>& ranks) const {
  RanksObserved observed{.ranks = ranks, .leaving = DrainActionNow(entry.job)};
  observed.hang = HangNow(entry, ranks, &observed.restart_hanging);
  if (entry.job.state() != v1::STARTING) return observed;
  const int64_t now = clock_.MonotonicNanos();
  if (std::exchange(entry.starting_epoch, entry.job.epoch()) != entry.job.epoch()) {
    entry.starting_ns = entry.start_told_ns = now;
  }
  observed.starting_ms = (now - entry.starting_ns) / 1'000'000;
  observed.tell = now - entry.start_told_ns >= timing_.start_told_ns;
  if (observed.tell) entry.start_told_ns = now;
  return observed;
}

bool Reconciler::HearsLastWords(Entry& entry, const std::vector<RankView>& ranks) {
  const int64_t now = clock_.MonotonicNanos();
  if (!HasLiveRank(ranks)) return false;
  if (!entry.broken.empty()) return now - entry.broken_ns < timing_.last_words_ns;
  if (FindFailure(ranks, /*missing_is_failure=*/true).rank == nullptr) return false;
  const auto next = Apply(entry.job, RanksObserved{ranks}, clock_.UnixMillis());
  if (!next.ok() || !next->changed || !HasEnded(next->job.state())) return false;
  entry.broken = ranks;
  entry.broken_ns = now;
  for (const RankView& view : ranks) strays_on_.insert(view.worker);  // their gang is no more
  LookSoon(entry);
  return true;
}

Progressed Reconciler::Told(const v1::Progress& progress, Entry* entry) {
  const v1::Progress& known = entry->job.progress();
  const bool step = progress.step() > known.step();
  const bool counts = step || progress.eval_step() > known.eval_step() ||
                      progress.checkpoint_step() > known.checkpoint_step();
  if (!counts || entry->job.state() != v1::RUNNING) return {.progress = progress};
  const bool new_gang = entry->done.epoch != entry->job.epoch();
  const int64_t from = new_gang ? std::min(known.step(), known.checkpoint_step()) : known.step();
  const int64_t again = std::min(entry->done.furthest, progress.step()) - from;
  if (step) entry->repeats = progress.step() <= entry->done.furthest;
  // One report may tell of many steps, and only of the last that it is new.
  const double share = step ? static_cast<double>(std::max<int64_t>(0, again)) /
                                  static_cast<double>(progress.step() - from)
                            : static_cast<double>(entry->repeats);
  entry->done.furthest = std::max(entry->done.furthest, progress.step());
  if (step) entry->done.epoch = entry->job.epoch();
  return {.progress = progress,
          .repeated_share = share,
          .evaluating_seconds = std::exchange(entry->evaluating_seconds, 0),
          .checkpoint_seconds = std::exchange(entry->checkpoint_seconds, 0)};
}

// Rank 0 speaks for the gang. Only a new checkpoint is written at once: it is what a restart and
// its bound depend on.
void Reconciler::TakeProgress(Entry& entry, const std::vector<RankView>& ranks) {
  if (ranks.empty() || ranks[0].presence != Presence::kReported) return;
  v1::Progress progress = ranks[0].report.progress();
  for (const RankView& view : ranks) {
    progress.set_external_bytes(
        std::max(progress.external_bytes(), view.report.progress().external_bytes()));
    progress.set_driver_bytes(
        std::max(progress.driver_bytes(), view.report.progress().driver_bytes()));
  }
  const v1::Progress& known = entry.job.progress();
  // A restarted rank knows no checkpoint of its own yet.
  if (progress.checkpoint_step() < known.checkpoint_step()) {
    progress.set_checkpoint_step(known.checkpoint_step());
    progress.set_checkpoint(known.checkpoint());
  }
  // Nor a step: until it ends one it stands where the checkpoint is.
  if (progress.step() == 0) progress.set_step(progress.checkpoint_step());
  const bool told_when = progress.checkpoint_unix_ms() > 0;
  if (!told_when && progress.checkpoint_step() == known.checkpoint_step())
    progress.set_checkpoint_unix_ms(known.checkpoint_unix_ms());
  if (progress.steps() == 0) progress.set_steps(known.steps());
  const bool new_checkpoint = progress.checkpoint_step() > known.checkpoint_step();
  const int64_t step_before = known.step();
  if (progress.SerializeAsString() == known.SerializeAsString()) return;
  absl::StatusOr<Transition> transition =
      Apply(entry.job, Told(progress, &entry), clock_.UnixMillis());
  if (!transition.ok()) return;
  CountFirstSteps(entry.job, transition->job);
  entry.job = std::move(transition->job);
  const bool steps = entry.job.state() == v1::RUNNING && progress.step() != step_before;
  if (steps) {
    const bool first = entry.training_epoch != entry.job.epoch();
    entry.longest_step_seconds = std::max(
        progress.step_seconds(), first ? 0 : kLongestStepKept * entry.longest_step_seconds);
  }
  if (steps && entry.training_epoch != entry.job.epoch()) {
    entry.training_epoch = entry.job.epoch();
    entry.training_since_unix_ms = clock_.UnixMillis();
  }
  if (new_checkpoint) entry.progress_written_ns = 0;
  NoteUnwritten(entry);
  CompareWithPlan(entry, step_before);
}

void Reconciler::Act(const v1::Job& job, const std::vector<RankView>& ranks,
                     const DrainAction& leaving) {
  for (const Action& action : ActionsFor(job, ranks, leaving)) {
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
  const v1::Grid grid = GridOf(job.plan().layout());
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
    PinFormats(job.plan().layout(), config->mutable_spec());
    if (!job.plan().layout().device().empty()) {  // what "auto" has come to
      config->mutable_spec()->mutable_resources()->set_device(job.plan().layout().device());
    }
    const int stage = static_cast<int>(CoordinatesOf(grid, placed.rank()).stage);
    if (stage < job.plan().program_sha256_size()) {
      config->set_program_sha256(job.plan().program_sha256(stage));
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

void Reconciler::StopStrays() {
  const int64_t now = clock_.MonotonicNanos();
  if (now >= sent_look_ns_) {
    std::erase_if(sent_ns_,
                  [&](const auto& sent) { return now - sent.second > timing_.repeat_ns; });
    sent_look_ns_ = now + timing_.repeat_ns;
  }
  for (const std::string& worker : std::exchange(strays_on_, {})) {
    for (const v1::RankReport& report : cluster_.RanksOn(worker)) {
      const Entry* entry = Find(report.job());
      const bool over = entry == nullptr || !entry->broken.empty();
      if (!IsStray(over ? nullptr : &entry->job, report)) continue;
      v1::CoordinatorMessage message;
      message.mutable_stop()->set_job(report.job());
      message.mutable_stop()->set_epoch(report.epoch());
      SendOnce({worker, report.job(), report.epoch(), kKill}, message);
    }
  }
}

void Reconciler::AnswerWaits() {
  for (Rendezvous::Answer& answer : rendezvous_.TakeAnswers(clock_.MonotonicNanos())) {
    v1::CoordinatorMessage message;
    *message.mutable_kv_values() = std::move(answer.values);
    ports_.Send(answer.worker, message);
  }
}

}  // namespace terrace
