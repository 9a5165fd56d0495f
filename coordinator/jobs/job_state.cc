// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/job_state.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/hardware/budget.h"
#include "coordinator/history/spent_time.h"
#include "coordinator/jobs/gang_failure.h"
#include "coordinator/jobs/hang.h"
#include "coordinator/jobs/time_limit.h"

namespace terrace {
namespace {

bool IsOneOf(v1::JobState state, std::initializer_list<v1::JobState> states) {
  return std::find(states.begin(), states.end(), state) != states.end();
}

// Changes state, reason and sentence of one job; a helper so that each rule below reads as one
// line. Copies the job only when something changes: jobs are large, and most of what is observed
// changes nothing.
class Mover {
 public:
  Mover(const v1::Job& job, int64_t unix_ms) : before_(job), unix_ms_(unix_ms) {}

  Transition Stay() { return std::move(next_); }

  Transition To(v1::JobState state, v1::Reason reason, std::string text) {
    const bool is_same = job().state() == state && job().reason() == reason;
    if (is_same && job().message() == text) return Stay();  // thousands of jobs may wait
    std::string message = CleanText(text);                  // what a worker said may be any bytes
    if (is_same && job().message() == message) return Stay();
    v1::Job& next = Change();
    if (state == v1::RUNNING && next.started_unix_ms() == 0) next.set_started_unix_ms(unix_ms_);
    if (HasEnded(state)) next.set_finished_unix_ms(unix_ms_);
    if (!HoldsDevices(state)) next.set_held_before_seconds(HeldSeconds(next, unix_ms_));
    if (state != v1::RUNNING) {  // what was asked of its gang is done, or its gang is gone
      next.clear_pause_requested();
      next.clear_resume_requested();
    }
    if (state != next.state()) next.set_paused_unix_ms(state == v1::PAUSED ? unix_ms_ : 0);
    if (!HoldsDevices(state)) {
      next.clear_hang();
      next.clear_slow_ranks();
    }
    next.set_state(state);
    next.set_reason(reason);
    next.set_message(std::move(message));
    return std::move(next_);
  }

  void LearnedOn(const std::string& worker) { next_.learned_on = worker; }

  // The job, to change more of it.
  v1::Job& Change() {
    if (!std::exchange(next_.changed, true)) next_.job = before_;
    return next_.job;
  }
  const v1::Job& job() const { return next_.changed ? next_.job : before_; }
  int64_t now() const { return unix_ms_; }

 private:
  const v1::Job& before_;
  Transition next_;
  int64_t unix_ms_;
};

absl::Status Illegal(const v1::Job& job, std::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.id(), " is ", v1::JobState_Name(job.state()), ": ", Absl(what)));
}

std::string RestartPoint(const v1::Job& job) {
  const int64_t step = job.progress().checkpoint_step();
  return step == 0 ? "from the beginning (no checkpoint yet)"
                   : absl::StrCat("from the checkpoint of step ", step);
}

constexpr char kResumedText[] =
    "resumed while it stopped for a pause: starts again after a checkpoint";

bool IsToPause(const v1::Job& job) { return job.pause_requested() && !job.resume_requested(); }

// What a paused job says of itself.
std::string HeldText(const v1::Job& job) {
  const std::string point = job.epoch() == 0 ? "takes its place in the queue"
                                             : absl::StrCat("goes on ", RestartPoint(job));
  return absl::StrCat(point, " when it is resumed: terrace resume ", job.id());
}

Transition Hold(Mover mover, std::string_view why = "") {
  const std::string text = HeldText(mover.job());
  mover.Change().mutable_progress()->clear_activity();  // nobody does it any more
  return mover.To(v1::PAUSED, v1::REASON_PAUSED_BY_USER,
                  why.empty() ? text : absl::StrCat(Absl(why), "; ", text));
}

void CountRestart(Mover* mover, v1::Reason reason, const std::string& message,
                  const RankView* lost) {
  constexpr int kKept = 16;  // a job is written with each change, and may restart for months
  v1::Job& job = mover->Change();
  job.set_restarts(job.restarts() + 1);
  if (job.last_restarts_size() == kKept) {
    job.mutable_last_restarts()->erase(job.last_restarts().begin());
  }
  v1::Restart* restart = job.add_last_restarts();
  restart->set_unix_ms(mover->now());
  restart->set_step(job.progress().checkpoint_step());
  restart->set_reason(reason);
  restart->set_message(CleanText(message));
  restart->set_detection_seconds(DetectionSeconds(lost, mover->now()));
}

// It had its devices for as long as its time limit allows.
Transition EndAtLimit(Mover mover, std::string_view why = "") {
  const v1::Job& job = mover.job();
  const std::string point = job.progress().checkpoint_step() == 0
                                ? "it has written no checkpoint"
                                : absl::StrCat("submit it again to go on ", RestartPoint(job));
  return mover.To(v1::FAILED, v1::REASON_TIME_LIMIT,
                  absl::StrCat("its ", TimeLimitText(job.spec()), " was reached at step ",
                               job.progress().step(), " of ", job.spec().train().steps(),
                               why.empty() ? "" : ", ", Absl(why), "; ", point));
}

// The gang is broken: again from the last checkpoint, if there are restarts left.
Transition Recover(Mover mover, v1::Reason reason, const std::string& what,
                   const RankView* lost = nullptr) {
  v1::Job& job = mover.Change();
  if (job.cancel_requested()) {
    return mover.To(v1::CANCELLED, v1::REASON_CANCELLED_BY_USER,
                    absl::StrCat("cancelled, without a last checkpoint: ", what));
  }
  if (job.time_limit_unix_ms() > 0) return EndAtLimit(std::move(mover), what);
  if (job.restarts_without_progress() >= job.spec().max_restarts()) {
    return mover.To(v1::FAILED, v1::REASON_RESTARTS_EXHAUSTED,
                    absl::StrCat(what, "; gave up after ", job.restarts_without_progress(),
                                 " restarts without a new checkpoint (max_restarts: ",
                                 job.spec().max_restarts(), ")"));
  }
  CountRestart(&mover, reason, what, lost);
  job.set_restarts_without_progress(job.restarts_without_progress() + 1);
  if (IsToPause(job)) return Hold(std::move(mover), what);
  return mover.To(v1::RECOVERING, reason,
                  absl::StrCat(what, "; restarts ", RestartPoint(job), " (restart ",
                               job.restarts_without_progress(), " of ", job.spec().max_restarts(),
                               " without progress)"));
}

// Its worker is drained: again from the last checkpoint, on others. That is no failure, and counts
// as none.
Transition Move(Mover mover, const DrainAction& leaving) {
  if (mover.job().cancel_requested()) {
    return mover.To(v1::CANCELLED, v1::REASON_CANCELLED_BY_USER,
                    absl::StrCat("cancelled, without a last checkpoint: ", leaving.why));
  }
  if (mover.job().time_limit_unix_ms() > 0) return EndAtLimit(std::move(mover), leaving.why);
  if (IsToPause(mover.job())) return Hold(std::move(mover), leaving.why);
  CountRestart(&mover, v1::REASON_NONE, leaving.why, nullptr);
  return mover.To(v1::RECOVERING, v1::REASON_NONE,
                  absl::StrCat(leaving.why, "; goes on elsewhere ", RestartPoint(mover.job())));
}

// ---- memory that ran out ----------------------------------------------------------------------

// Its last adjustment is still to be found.
bool LacksLayout(const v1::Job& job) {
  return job.adjustments_size() > 0 && !job.adjustments().rbegin()->has_layout();
}

std::string SeeksLayoutText(const v1::Job& job) {
  return absl::StrCat(job.adjustments().rbegin()->cause(),
                      "; looks for a layout that needs less, to go on ", RestartPoint(job));
}

// A restart for this cause began when the gang broke, and the rank that broke it is heard only now.
bool IsRestartOfPeers(const v1::Job& job) {
  return job.state() == v1::RECOVERING && !NeedsSmallerLayout(job) &&
         (job.reason() == v1::REASON_RANK_DIED || job.reason() == v1::REASON_WORKER_LOST ||
          job.reason() == v1::REASON_INTERNAL);
}

// The same layout once more where the rank held no more than its plan allows: others took the
// memory. If that happens again without progress, or it held more, a smaller layout is needed.
Transition RunOut(Mover mover, const GangFailure& failure) {
  v1::Job& job = mover.Change();
  if (IsRestartOfPeers(job)) {
    job.set_restarts(job.restarts() - 1);
    if (job.last_restarts_size() > 0) job.mutable_last_restarts()->RemoveLast();
    job.set_restarts_without_progress(std::max(0, job.restarts_without_progress() - 1));
  }
  const v1::RankMemory& memory = failure.rank->report.memory();
  const bool within_plan = memory.external_bytes() <= memory.external_allowed_bytes();
  const bool ends = job.cancel_requested() || job.time_limit_unix_ms() > 0;
  if (ends || (within_plan && job.restarts_without_progress() == 0)) {
    return Recover(std::move(mover), failure.reason, failure.message, failure.rank);
  }
  const int64_t learned = LearnedFrom(memory.external_bytes());
  if (!within_plan && learned > job.learned_external_bytes()) {
    job.set_learned_external_bytes(learned);
    mover.LearnedOn(failure.rank->worker);
  }
  CountRestart(&mover, failure.reason, failure.message, failure.rank);
  v1::Adjustment* adjustment = job.add_adjustments();
  adjustment->set_step(job.progress().checkpoint_step());
  adjustment->set_cause(failure.message);
  if (IsToPause(job)) return Hold(std::move(mover), failure.message);
  return mover.To(v1::RECOVERING, failure.reason, SeeksLayoutText(job));
}

bool All(absl::Span<const RankView> ranks, bool (*holds)(const v1::RankReport&)) {
  return std::all_of(ranks.begin(), ranks.end(), [holds](const RankView& view) {
    return view.presence == Presence::kReported && holds(view.report);
  });
}

bool IsPrepared(const v1::RankReport& report) {
  return report.state() == v1::RANK_READY || report.state() == v1::RANK_RUNNING ||
         report.state() == v1::RANK_SUCCEEDED;
}
bool HasSucceeded(const v1::RankReport& report) { return report.state() == v1::RANK_SUCCEEDED; }
bool HasDoneAllSteps(const v1::RankReport& report) {
  return HasSucceeded(report) && !report.stopped_early();
}

// A step of the gang that runs now has ended.
bool EndsStep(const v1::Job& job, const Progressed& input) {
  return job.state() == v1::RUNNING && input.progress.step() > job.progress().step();
}

// The end of a step, an evaluation or a checkpoint tells how the time before it was spent.
StepsDone StepsOf(const v1::Job& job, const JobInput& input) {
  const auto* progressed = std::get_if<Progressed>(&input);
  if (progressed == nullptr || job.state() != v1::RUNNING) return {};
  const v1::Progress& now = progressed->progress;
  return {.any = EndsStep(job, *progressed) || now.eval_step() > job.progress().eval_step() ||
                 now.checkpoint_step() > job.progress().checkpoint_step(),
          .repeated_share = progressed->repeated_share,
          .evaluating_seconds = progressed->evaluating_seconds,
          .checkpoint_seconds = progressed->checkpoint_seconds};
}

std::string CompletedText(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  const v1::TrainSpec& train = job.spec().train();
  if (train.early_stop().evaluations() == 0 || progress.step() >= train.steps())
    return "all steps are done";
  return absl::StrFormat(
      "ended after step %d of %d: none of the last %d validation losses was better than %.4f after "
      "step %d (train.early_stop)",
      progress.step(), train.steps(), train.early_stop().evaluations(), progress.best_eval_loss(),
      progress.best_eval_step());
}

bool SavesNothing(const v1::Job& job) { return job.spec().checkpoint().save() == "never"; }

// ---- ranks that hang --------------------------------------------------------------------------

std::string DeadlineText(const v1::WatchdogSpec& watchdog) {
  if (watchdog.on_hang() != "restart") return "";
  return absl::StrCat("; restarts after ", watchdog.timeout_seconds(), " s of that");
}

// Told once, in the words of when it was noticed.
Transition Hang(Mover mover, const v1::Hang& hang) {
  const v1::JobState state = mover.job().state();
  if (mover.job().has_hang() && IsSameHang(mover.job().hang(), hang)) return mover.Stay();
  *mover.Change().mutable_hang() = hang;
  return mover.To(state, v1::REASON_RANK_HANGS,
                  absl::StrCat(hang.message(), DeadlineText(mover.job().spec().watchdog())));
}

// Behind what it says of itself while it is asked to stop.
std::string HangAside(const v1::Job& job) {
  return job.has_hang() ? absl::StrCat(", when it goes on: ", job.hang().message(),
                                       "; --force does not wait for that")
                        : "";
}

std::string StopsText(const v1::Job& job) {
  return absl::StrCat(SavesNothing(job) ? "stops after this step" : "stops after a last checkpoint",
                      HangAside(job));
}
std::string LimitText(const v1::Job& job) {
  return absl::StrCat("its ", TimeLimitText(job.spec()), " is reached: ", StopsText(job));
}
std::string PausesText(const v1::Job& job) {
  return absl::StrCat("pauses after a checkpoint", HangAside(job));
}

Transition ObserveRunning(Mover mover, const RanksObserved& input) {
  const std::vector<RankView>& ranks = input.ranks;
  const DrainAction& leaving = input.leaving;
  if (All(ranks, HasDoneAllSteps)) {
    return mover.To(v1::SUCCEEDED, v1::REASON_COMPLETED, CompletedText(mover.job()));
  }
  if (All(ranks, HasSucceeded)) {
    if (!mover.job().cancel_requested()) {
      if (mover.job().time_limit_unix_ms() > 0) return EndAtLimit(std::move(mover));
      if (IsToPause(mover.job())) return Hold(std::move(mover));
      if (mover.job().pause_requested()) return mover.To(v1::QUEUED, v1::REASON_NONE, "");
      if (leaving.how != DrainAction::How::kStays) return Move(std::move(mover), leaving);
      return Recover(std::move(mover), v1::REASON_WORKER_LOST, "a worker stopped its ranks");
    }
    return mover.To(v1::CANCELLED, v1::REASON_CANCELLED_BY_USER,
                    SavesNothing(mover.job()) ? "cancelled without a checkpoint: its spec has none"
                                              : "cancelled after a last checkpoint");
  }
  if (leaving.how == DrainAction::How::kAtOnce) return Move(std::move(mover), leaving);
  const bool at_limit = HasReachedTimeLimit(mover.job(), mover.now());
  if (at_limit && mover.job().time_limit_unix_ms() == 0) {
    mover.Change().set_time_limit_unix_ms(mover.now());
  } else if (at_limit && mover.now() - mover.job().time_limit_unix_ms() >= kTimeLimitGraceMs) {
    constexpr char kNotWritten[] = "and a last checkpoint was not written in time";
    if (!mover.job().cancel_requested()) return EndAtLimit(std::move(mover), kNotWritten);
    return mover.To(v1::CANCELLED, v1::REASON_CANCELLED_BY_USER,
                    absl::StrCat("cancelled; its time limit was reached, ", kNotWritten));
  }
  if (input.hang.has_value()) return Hang(std::move(mover), *input.hang);
  if (mover.job().has_hang()) mover.Change().clear_hang();
  if (mover.job().cancel_requested())
    return mover.To(v1::RUNNING, v1::REASON_CANCELLED_BY_USER, StopsText(mover.job()));
  if (mover.job().time_limit_unix_ms() > 0)
    return mover.To(v1::RUNNING, v1::REASON_TIME_LIMIT, LimitText(mover.job()));
  if (mover.job().pause_requested()) {
    if (mover.job().reason() != v1::REASON_RANK_HANGS) return mover.Stay();
    return IsToPause(mover.job())
               ? mover.To(v1::RUNNING, v1::REASON_PAUSED_BY_USER, PausesText(mover.job()))
               : mover.To(v1::RUNNING, v1::REASON_NONE, kResumedText);
  }
  return mover.To(
      v1::RUNNING, v1::REASON_NONE,
      leaving.why.empty() ? "" : absl::StrCat("moves after a checkpoint: ", leaving.why));
}

// ---- one rule an input ------------------------------------------------------------------------

class Rules {
 public:
  Rules(const v1::Job& job, int64_t unix_ms) : job_(job), mover_(job, unix_ms) {}

  absl::StatusOr<Transition> operator()(const PlanningStarted&) {
    if (!IsOneOf(job_.state(), {v1::PENDING, v1::QUEUED, v1::RECOVERING})) {
      return Illegal(job_, "it cannot be planned now");
    }
    return mover_.To(v1::PLANNING, v1::REASON_NONE, "");
  }

  absl::StatusOr<Transition> operator()(const Planned& input) {
    if (!IsOneOf(job_.state(), {v1::PENDING, v1::PLANNING, v1::PAUSED})) {
      return Illegal(job_, "it takes no plan now");
    }
    *mover_.Change().mutable_plan() = input.plan;
    if (job_.state() == v1::PAUSED) return mover_.Stay();
    return mover_.To(v1::QUEUED, v1::REASON_NONE, "");
  }

  absl::StatusOr<Transition> operator()(const Refused& input) {
    if (SeeksLayout()) {
      const std::string cause = job_.adjustments().rbegin()->cause();
      mover_.Change().mutable_adjustments()->RemoveLast();  // there was none
      return mover_.To(v1::FAILED, input.reason, absl::StrCat(cause, "; ", input.message));
    }
    if (!IsOneOf(job_.state(), {v1::PENDING, v1::PLANNING, v1::PAUSED})) {
      return Illegal(job_, "it was admitted already");
    }
    return mover_.To(v1::FAILED, input.reason, input.message);
  }

  absl::StatusOr<Transition> operator()(const Adjusted& input) {
    if (!SeeksLayout()) return Illegal(job_, "it needs no smaller layout");
    v1::Job& next = mover_.Change();
    *next.mutable_plan() = input.plan;
    v1::Adjustment& adjustment = *next.mutable_adjustments()->rbegin();
    adjustment.set_unix_ms(mover_.now());
    adjustment.set_step(job_.progress().checkpoint_step());
    adjustment.set_change(input.change);
    *adjustment.mutable_layout() = input.plan.layout();
    if (job_.state() == v1::PAUSED) return mover_.Stay();
    return mover_.To(
        v1::RECOVERING, v1::REASON_NONE,
        absl::StrCat("memory ran out: goes on ", RestartPoint(job_), " with ", input.change));
  }

  absl::StatusOr<Transition> operator()(const MustWait& input) {
    switch (job_.state()) {
      case v1::PENDING:
      case v1::PLANNING:
      case v1::QUEUED:
        return mover_.To(v1::QUEUED, input.reason, input.message);
      case v1::RECOVERING:
        return mover_.To(v1::RECOVERING, input.reason, input.message);
      default:
        return Illegal(job_, "it does not wait for devices");
    }
  }

  absl::StatusOr<Transition> operator()(const Placed& input) {
    if (!IsOneOf(job_.state(), {v1::QUEUED, v1::RECOVERING}) || !job_.has_plan()) {
      return Illegal(job_, "it cannot be placed now");
    }
    v1::Job& next = mover_.Change();
    *next.mutable_placement() = input.placement;
    next.set_epoch(job_.epoch() + 1);
    next.set_placed_unix_ms(mover_.now());
    return mover_.To(v1::STARTING, v1::REASON_NONE, "");
  }

  absl::StatusOr<Transition> operator()(const RanksObserved& input) {
    if (!IsOneOf(job_.state(), {v1::STARTING, v1::RUNNING, v1::RECOVERING})) {
      return Illegal(job_, "it has no ranks");
    }
    // While a gang starts, a missing rank is one whose start command is still to be carried out.
    const bool missing_is_failure =
        job_.state() == v1::RUNNING || input.starting_ms >= kStartTakenUpMs;
    GangFailure failure = FindFailure(input.ranks, missing_is_failure);
    if (IsPermanent(failure.reason)) {
      return mover_.To(v1::FAILED, failure.reason, std::move(failure.message));
    }
    const bool ran_out = failure.reason == v1::REASON_OUT_OF_MEMORY;
    if (ran_out && (job_.state() != v1::RECOVERING || IsRestartOfPeers(job_))) {
      return RunOut(std::move(mover_), failure);
    }
    if (job_.state() == v1::RECOVERING) return mover_.Stay();
    if (failure.reason != v1::REASON_NONE) {
      return Recover(std::move(mover_), failure.reason, failure.message, failure.rank);
    }
    if (input.hang.has_value() && input.restart_hanging) return RestartHanging(input);
    if (job_.state() == v1::RUNNING) return ObserveRunning(std::move(mover_), input);
    if (input.leaving.how != DrainAction::How::kStays)
      return Move(std::move(mover_), input.leaving);
    if (HasReachedTimeLimit(job_, mover_.now())) {
      return EndAtLimit(std::move(mover_), "while it started again");
    }
    if (!All(input.ranks, IsPrepared)) {
      if (input.hang.has_value()) return Hang(std::move(mover_), *input.hang);
      const bool goes_on = job_.has_hang();
      if (goes_on) mover_.Change().clear_hang();
      if (!input.tell && !goes_on) return mover_.Stay();
      return mover_.To(v1::STARTING, v1::REASON_NONE, WhatStartWaitsFor(input.ranks));
    }
    return mover_.To(v1::RUNNING, v1::REASON_NONE, "");
  }

  absl::StatusOr<Transition> operator()(const Progressed& input) {
    if (!IsOneOf(job_.state(), {v1::STARTING, v1::RUNNING})) {
      return Illegal(job_, "it makes no progress");
    }
    v1::Job& next = mover_.Change();
    if (input.progress.checkpoint_step() > job_.progress().checkpoint_step()) {
      next.set_restarts_without_progress(0);
    }
    if (EndsStep(job_, input)) NoteFirstStep(mover_.now(), &next);
    *next.mutable_progress() = input.progress;
    return mover_.Stay();
  }

  absl::StatusOr<Transition> operator()(const CancelAsked& input) {
    if (HasEnded(job_.state())) return Illegal(job_, "it has ended already");
    if (job_.state() != v1::RUNNING || input.force) {
      mover_.Change().set_cancel_requested(true);
      mover_.Change().set_cancel_force(input.force);
      return mover_.To(v1::CANCELLED, v1::REASON_CANCELLED_BY_USER, "cancelled");
    }
    if (job_.cancel_requested()) return mover_.Stay();
    mover_.Change().set_cancel_requested(true);
    return mover_.To(v1::RUNNING, v1::REASON_CANCELLED_BY_USER, StopsText(job_));
  }

  absl::StatusOr<Transition> operator()(const PauseAsked& input) {
    if (HasEnded(job_.state())) return Illegal(job_, "it has ended already");
    if (job_.cancel_requested()) return Illegal(job_, "it is being cancelled");
    if (job_.time_limit_unix_ms() > 0) return Illegal(job_, "it ends, its time limit is reached");
    if (job_.state() == v1::PAUSED) return mover_.Stay();
    if (job_.state() != v1::RUNNING || input.force) return Hold(std::move(mover_));
    if (SavesNothing(job_)) {
      return Illegal(job_, absl::StrCat("it saves no checkpoints (checkpoint.save: never), and a "
                                        "pause would lose its ",
                                        job_.progress().step(),
                                        " steps; with --force it is paused and begins again"));
    }
    if (IsToPause(job_)) return mover_.Stay();
    mover_.Change().set_pause_requested(true);
    mover_.Change().clear_resume_requested();
    return mover_.To(v1::RUNNING, v1::REASON_PAUSED_BY_USER, PausesText(job_));
  }

  absl::StatusOr<Transition> operator()(const ResumeAsked&) {
    if (HasEnded(job_.state())) return Illegal(job_, "it has ended already");
    if (job_.cancel_requested()) return Illegal(job_, "it is being cancelled");
    if (IsToPause(job_)) {  // its ranks have been told to stop
      mover_.Change().set_resume_requested(true);
      return mover_.To(v1::RUNNING, v1::REASON_NONE, kResumedText);
    }
    if (job_.state() != v1::PAUSED) return mover_.Stay();
    NotePause(mover_.now(), &mover_.Change());
    if (LacksLayout(job_))
      return mover_.To(v1::RECOVERING, v1::REASON_OUT_OF_MEMORY, SeeksLayoutText(job_));
    return mover_.To(job_.has_plan() ? v1::QUEUED : v1::PENDING, v1::REASON_NONE, "");
  }

  absl::StatusOr<Transition> operator()(const DependencyFailed& input) {
    if (HasEnded(job_.state()) || job_.epoch() > 0) return Illegal(job_, "it has started");
    return mover_.To(v1::FAILED, v1::REASON_DEPENDENCY_FAILED, input.message);
  }

 private:
  absl::StatusOr<Transition> RestartHanging(const RanksObserved& input) {
    const auto of = std::find_if(input.ranks.begin(), input.ranks.end(), [&](const RankView& view) {
      return view.rank == input.hang->ranks(0);
    });
    const std::string message =
        absl::StrCat(input.hang->message(), ", for ", job_.spec().watchdog().timeout_seconds(),
                     " s (watchdog.timeout)");
    return Recover(std::move(mover_), v1::REASON_RANK_HANGS, message,
                   of == input.ranks.end() ? nullptr : &*of);
  }

  bool SeeksLayout() const {
    return LacksLayout(job_) && IsOneOf(job_.state(), {v1::RECOVERING, v1::PAUSED});
  }

  const v1::Job& job_;
  Mover mover_;
};

}  // namespace

bool HasEnded(v1::JobState state) {
  return IsOneOf(state, {v1::SUCCEEDED, v1::FAILED, v1::CANCELLED});
}

bool HoldsDevices(v1::JobState state) { return IsOneOf(state, {v1::STARTING, v1::RUNNING}); }

bool IsPermanent(v1::Reason reason) {
  switch (reason) {
    case v1::REASON_INVALID_SPEC:
    case v1::REASON_DOES_NOT_FIT:
    case v1::REASON_DATA_ERROR:
    case v1::REASON_WEIGHTS_ERROR:
    case v1::REASON_CHECKPOINT_ERROR:
    case v1::REASON_NON_FINITE_LOSS:
      return true;
    default:
      return false;
  }
}

bool NeedsSmallerLayout(const v1::Job& job) {
  return job.state() == v1::RECOVERING && LacksLayout(job);
}

int64_t NumberOf(std::string_view id) {
  const std::string_view digits = id.substr(id.rfind('-') + 1);
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

v1::Job NewJob(std::string_view id, const v1::JobSpec& spec, int64_t unix_ms) {
  v1::Job job;
  job.set_id(std::string(id));
  *job.mutable_spec() = spec;
  job.set_state(v1::PENDING);
  job.set_submitted_unix_ms(unix_ms);
  job.mutable_progress()->set_steps(spec.train().steps());
  return job;
}

absl::StatusOr<Transition> Apply(const v1::Job& job, const JobInput& input, int64_t unix_ms) {
  ASSIGN_OR_RETURN(Transition next, std::visit(Rules(job, unix_ms), input));
  if (next.changed) CountTime(job, StepsOf(job, input), unix_ms, &next.job);
  return next;
}

std::vector<Action> ActionsFor(const v1::Job& job, absl::Span<const RankView> ranks,
                               const DrainAction& leaving) {
  const bool stops = job.cancel_requested() || job.pause_requested() ||
                     job.time_limit_unix_ms() > 0 ||
                     leaving.how == DrainAction::How::kAfterCheckpoint;
  std::vector<Action> actions;
  const auto add = [&actions](Action::Kind kind, const RankView& view) {
    auto same = std::find_if(actions.begin(), actions.end(),
                             [&](const Action& action) { return action.worker == view.worker; });
    if (same == actions.end()) same = actions.insert(actions.end(), {kind, view.worker, {}});
    if (kind == Action::Kind::kStart) same->ranks.push_back(view.rank);
  };
  for (const RankView& view : ranks) {
    const v1::RankState state = view.report.state();
    if (job.state() == v1::STARTING && view.presence == Presence::kMissing) {
      add(Action::Kind::kStart, view);
    } else if (job.state() == v1::RUNNING && view.presence == Presence::kReported) {
      const bool alive = state != v1::RANK_SUCCEEDED && state != v1::RANK_FAILED;
      if (state == v1::RANK_READY) {
        add(Action::Kind::kGo, view);
      } else if (stops && alive) {
        add(Action::Kind::kStopWithCheckpoint, view);
      }
    }
  }
  return actions;
}

bool IsStray(const v1::Job* job, const v1::RankReport& report) {
  return job == nullptr || !HoldsDevices(job->state()) || job->epoch() != report.epoch();
}

}  // namespace terrace
