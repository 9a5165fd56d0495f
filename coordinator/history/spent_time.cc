// SPDX-License-Identifier: Apache-2.0
#include "coordinator/history/spent_time.h"

#include <algorithm>
#include <string>

namespace terrace {
namespace {

int64_t CountedUntil(const v1::Job& job) {
  return std::max(job.spent_unix_ms(), job.submitted_unix_ms());
}

void Add(v1::Job* job, std::string_view cause, double seconds) {
  if (seconds <= 0) return;
  for (v1::SpentTime& spent : *job->mutable_spent()) {
    if (spent.cause() == cause) return spent.set_seconds(spent.seconds() + seconds);
  }
  v1::SpentTime* spent = job->add_spent();
  spent->set_cause(std::string(cause));
  spent->set_seconds(seconds);
}

// Its last restart has not come to the end of a step yet.
bool IsBeingRestarted(const v1::Job& job) {
  return job.last_restarts_size() > 0 && job.last_restarts().rbegin()->recovery_seconds() == 0;
}

// What a job that does not run does; a job that restarts is back when a step has ended.
std::string_view CauseOf(const v1::Job& job) {
  if (job.state() == v1::PAUSED) return "paused";
  if (IsBeingRestarted(job)) return "recovering";
  switch (job.state()) {
    case v1::PENDING:
    case v1::PLANNING:
      return "planning";
    case v1::STARTING:
      return "starting";
    default:
      return "queued";
  }
}

// RUNNING: an evaluation and a checkpoint that took longer than passed had begun before.
void CountSteps(const StepsDone& steps, double seconds, v1::Job* job) {
  const double checkpoint = std::min(seconds, steps.checkpoint_seconds);
  const double evaluating = std::min(seconds - checkpoint, steps.evaluating_seconds);
  Add(job, "checkpoint", checkpoint);
  Add(job, "evaluating", evaluating);
  const double stepping = seconds - checkpoint - evaluating;
  Add(job, "repeated", stepping * steps.repeated_share);
  Add(job, "training", stepping * (1 - steps.repeated_share));
}

bool HasEndedNow(const v1::Job& before, const v1::Job& after) {
  return after.finished_unix_ms() > 0 && before.finished_unix_ms() == 0;
}

}  // namespace

void CountTime(const v1::Job& before, const StepsDone& steps, int64_t unix_ms, v1::Job* after) {
  if (before.finished_unix_ms() > 0) return;
  // A clock that was set back: what it counted once it counts no second time.
  const int64_t passed_ms = unix_ms - CountedUntil(before);
  if (passed_ms <= 0) return;
  const double seconds = static_cast<double>(passed_ms) / 1000;
  if (before.state() != v1::RUNNING) {
    Add(after, CauseOf(before), seconds);
  } else if (steps.any || HasEndedNow(before, *after)) {
    CountSteps(steps, seconds, after);
  } else if (after->state() != v1::RUNNING) {
    // A gang that was to stop has done so. Else a step that nobody finished, and who noticed it.
    const bool has_stopped = before.pause_requested() && after->restarts() == before.restarts();
    Add(after, has_stopped ? "paused" : "recovering", seconds);
  } else {
    return;
  }
  after->set_spent_unix_ms(unix_ms);
}

SpentUntil TimeSpentUntil(const v1::Job& job, int64_t unix_ms) {
  SpentUntil until;
  for (size_t i = 0; i < kSpentCauses.size(); ++i) {
    for (const v1::SpentTime& spent : job.spent()) {
      if (spent.cause() == kSpentCauses[i]) until.seconds[i] += spent.seconds();
    }
  }
  int64_t counted_ms = CountedUntil(job);
  const bool waits = job.finished_unix_ms() == 0 && job.state() != v1::RUNNING;
  if (waits && unix_ms > counted_ms) {
    const auto cause = std::find(kSpentCauses.begin(), kSpentCauses.end(), CauseOf(job));
    until.seconds[static_cast<size_t>(cause - kSpentCauses.begin())] +=
        static_cast<double>(unix_ms - counted_ms) / 1000;
    counted_ms = unix_ms;
  }
  until.wall_seconds = static_cast<double>(counted_ms - job.submitted_unix_ms()) / 1000;
  return until;
}

double PausedSeconds(const v1::Job& job, int64_t unix_ms) {
  const auto paused = std::find(kSpentCauses.begin(), kSpentCauses.end(), "paused");
  return TimeSpentUntil(job, unix_ms).seconds[static_cast<size_t>(paused - kSpentCauses.begin())];
}

void NoteFirstStep(int64_t unix_ms, v1::Job* job) {
  if (job->first_step_unix_ms() == 0) job->set_first_step_unix_ms(unix_ms);
  if (!IsBeingRestarted(*job)) return;
  v1::Restart& restart = *job->mutable_last_restarts()->rbegin();
  const double since = static_cast<double>(unix_ms - restart.unix_ms()) / 1000;
  restart.set_recovery_seconds(std::max(1e-3, since - restart.paused_seconds()));
}

void NotePause(int64_t unix_ms, v1::Job* job) {
  job->set_resumed_unix_ms(unix_ms);
  if (!IsBeingRestarted(*job)) return;
  v1::Restart& restart = *job->mutable_last_restarts()->rbegin();
  const int64_t paused_ms = std::max<int64_t>(0, unix_ms - job->paused_unix_ms());
  restart.set_paused_seconds(restart.paused_seconds() + static_cast<double>(paused_ms) / 1000);
}

}  // namespace terrace
