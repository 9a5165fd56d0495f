// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/status_macros.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/life/time_limit.h"

// What is counted, and what /metrics shows of it.
namespace terrace {
namespace {

// The newest events of a job that the store keeps.
constexpr int64_t kEventsRead = 4096;

int64_t PlannedArenaBytes(const v1::Plan& plan) {
  int64_t bytes = 0;
  for (const v1::StageMemory& stage : plan.memory()) {
    if (stage.tier() == v1::HOST || stage.tier() == v1::NVME) continue;
    bytes = std::max(bytes, stage.arena_bytes());
  }
  return bytes;
}

int64_t WaitsSince(const v1::Job& job) {
  if (job.state() == v1::RECOVERING && job.last_restarts_size() > 0)
    return std::max(job.last_restarts().rbegin()->unix_ms(), job.resumed_unix_ms());
  return std::max(job.submitted_unix_ms(), job.resumed_unix_ms());
}

// Its last restart: from a drained worker a job only moves.
bool FollowsFailure(const v1::Job& job) {
  return job.last_restarts_size() > 0 && job.last_restarts().rbegin()->reason() != v1::REASON_NONE;
}

// From its submission on, without what it was paused for.
double SecondsInUse(const v1::Job& job, int64_t unix_ms) {
  const double whole = static_cast<double>(unix_ms - job.submitted_unix_ms()) / 1000;
  return std::max(0.0, whole - PausedSeconds(job, unix_ms));
}

}  // namespace

JobStats StatsOf(const v1::Job& job, int64_t unix_ms) {
  return {.id = job.id(),
          .progress = job.progress(),
          .spent = TimeSpentUntil(job, unix_ms),
          .runs = job.state() == v1::RUNNING,
          .sequence_length = job.spec().data().sequence_length(),
          .checkpoint_every_steps = job.spec().checkpoint().every_steps(),
          .restarts = job.restarts(),
          .restarts_without_progress = job.restarts_without_progress(),
          .submitted_unix_ms = job.submitted_unix_ms(),
          .first_step_unix_ms = job.first_step_unix_ms(),
          .planned_arena_bytes = PlannedArenaBytes(job.plan()),
          .planned_step_seconds = job.plan().time().step_seconds(),
          .hang_rank = job.has_hang() ? int64_t{job.hang().ranks(0)} : -1,
          .hang_seconds = static_cast<double>(unix_ms - job.hang().since_unix_ms()) / 1000,
          .slow_ranks = job.slow_ranks_size(),
          .held_seconds = HeldSeconds(job, unix_ms),
          .time_limit_seconds = job.spec().time_limit_seconds()};
}

ControlStats Reconciler::Stats() const {
  ControlStats stats = stats_;
  const int64_t unix_ms = clock_.UnixMillis();
  for (const auto& [id, entry] : jobs_) {
    const v1::Job& job = entry.job;
    if (job.state() == v1::QUEUED || job.state() == v1::RECOVERING) {
      ++stats.pending[job.reason()];
      int64_t& since = stats.pending_since_unix_ms[job.reason()];
      const int64_t waits_since = WaitsSince(job);
      if (since == 0 || waits_since < since) since = waits_since;
    }
    if (job.epoch() == 0) continue;
    if (stats.shown.size() == kJobsShownMax) {
      ++stats.not_shown;
    } else {
      stats.shown.push_back(StatsOf(job, unix_ms));
      if (job.state() == v1::RUNNING && entry.training_epoch == job.epoch())
        stats.shown.back().training_since_unix_ms = entry.training_since_unix_ms;
    }
  }
  const int64_t now_ns = clock_.MonotonicNanos();
  for (const Ended& ended : ended_shown_) {
    if (now_ns - ended.ended_ns > kEndedJobShownNs || stats.shown.size() == kJobsShownMax) continue;
    stats.shown.push_back(ended.stats);
  }
  CountNodes(&stats);
  return stats;
}

void Reconciler::CountNodes(ControlStats* stats) const {
  const auto drained = [this](std::string_view node) { return drains_.contains(node); };
  for (const auto& [state, count] : cluster_.Count(clock_.MonotonicNanos(), drained))
    stats->nodes[std::string(NodeStateName(state))] += count;
  if (drains_.empty()) return;
  const auto jobs = JobsOnDrained();
  for (const auto& [node, drain] : drains_) {
    if (cluster_.Has(node)) ++stats->nodes[std::string(DrainedStateName(jobs.contains(node)))];
  }
}

absl::Status Reconciler::Commit(const Transaction& transaction) {
  const int64_t start_ns = clock_.MonotonicNanos();
  absl::Status status = store_.Commit(transaction);
  stats_.store_write_seconds.Observe(static_cast<double>(clock_.MonotonicNanos() - start_ns) *
                                     1e-9);
  return status;
}

void Reconciler::CountTransition(const v1::Job& before, const v1::Job& after) {
  --stats_.jobs[before.state()];
  ++stats_.jobs[after.state()];
  if (after.restarts() > before.restarts())
    ++stats_.restarts[after.last_restarts().rbegin()->reason()];
  if (after.reason() == v1::REASON_TIME_LIMIT && before.reason() != v1::REASON_TIME_LIMIT)
    ++stats_.time_limits;
  if (after.epoch() == 1 && before.epoch() == 0)
    stats_.queue_seconds.Observe(SecondsInUse(after, clock_.UnixMillis()));
  if (after.restarts() > before.restarts() && FollowsFailure(after))
    stats_.detection_seconds.Observe(after.last_restarts().rbegin()->detection_seconds());
  if (HasEnded(after.state()) && after.epoch() > 0) {
    const int64_t now_ns = clock_.MonotonicNanos();
    while (!ended_shown_.empty() && (ended_shown_.size() >= kJobsShownMax ||
                                     now_ns - ended_shown_.front().ended_ns > kEndedJobShownNs)) {
      ended_shown_.pop_front();
    }
    ended_shown_.push_back({StatsOf(after, clock_.UnixMillis()), now_ns});
  }
}

void Reconciler::CountFirstSteps(const v1::Job& before, const v1::Job& after) {
  if (before.first_step_unix_ms() == 0 && after.first_step_unix_ms() > 0) {
    stats_.first_step_seconds.Observe(SecondsInUse(after, after.first_step_unix_ms()));
  }
  if (before.last_restarts_size() == 0 || after.last_restarts_size() == 0) return;
  if (!FollowsFailure(after)) return;
  const double recovered = after.last_restarts().rbegin()->recovery_seconds();
  if (before.last_restarts().rbegin()->recovery_seconds() == 0 && recovered > 0)
    stats_.recovery_seconds.Observe(recovered);
}

// Steps that its gangs have done: the next gang may be about to do some of them again.
absl::StatusOr<Reconciler::GangSteps> Reconciler::GangStepsOf(const v1::Job& job,
                                                              int64_t last_sequence) const {
  GangSteps done = {.furthest = job.progress().step(), .epoch = job.epoch()};
  if (job.epoch() <= 1) return done;
  done.epoch = 0;
  ASSIGN_OR_RETURN(
      const std::vector<v1::JobEvent> events,
      store_.Events(job.id(), std::max<int64_t>(0, last_sequence - kEventsRead), kEventsRead));
  for (const v1::JobEvent& event : events) {
    if (!event.has_step()) continue;
    done.furthest = std::max(done.furthest, event.step().step());
    done.epoch = event.epoch();
    if (event.epoch() == job.epoch()) done.newest = event.step().step();
  }
  return done;
}

}  // namespace terrace
