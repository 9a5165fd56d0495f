// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/job_state.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/hardware/budget.h"
#include "coordinator/history/spent_time.h"
#include "coordinator/life/gang_failure.h"
#include "coordinator/life/job_mover.h"
#include "coordinator/life/running.h"
#include "coordinator/life/stops.h"
#include "coordinator/life/time_limit.h"

namespace terrace {
namespace {

constexpr char kResumedText[] =
    "resumed while it stopped for a pause: starts again after a checkpoint";

bool IsOneOf(v1::JobState state, std::initializer_list<v1::JobState> states) {
  return std::find(states.begin(), states.end(), state) != states.end();
}

absl::Status Illegal(const v1::Job& job, std::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.id(), " is ", v1::JobState_Name(job.state()), ": ", Absl(what)));
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

bool IsPrepared(const v1::RankReport& report) {
  return report.state() == v1::RANK_READY || report.state() == v1::RANK_RUNNING ||
         report.state() == v1::RANK_SUCCEEDED;
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
    const bool waits = IsOneOf(job_.state(), {v1::PAUSED, v1::QUEUED, v1::RECOVERING});
    if (!waits && !IsOneOf(job_.state(), {v1::PENDING, v1::PLANNING})) {
      return Illegal(job_, "it takes no plan now");
    }
    *mover_.Change().mutable_plan() = input.plan;
    if (waits) return mover_.Stay();
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
    NoteResize(input.placement);
    v1::Job& next = mover_.Change();
    *next.mutable_placement() = input.placement;
    next.set_epoch(job_.epoch() + 1);
    next.set_placed_unix_ms(mover_.now());
    next.clear_preempted_by();
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
    RETURN_IF_ERROR(MayStop());
    if (job_.state() == v1::PAUSED) return mover_.Stay();
    if (job_.state() != v1::RUNNING || input.force) return Hold(std::move(mover_));
    RETURN_IF_ERROR(LosesNothing("pause", "paused"));
    if (IsToPause(job_)) return mover_.Stay();
    mover_.Change().set_pause_requested(true);
    mover_.Change().clear_resume_requested();
    mover_.Change().clear_preempted_by();
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

  absl::StatusOr<Transition> operator()(const RequeueAsked& input) {
    RETURN_IF_ERROR(MayStop());
    if (job_.state() == v1::PAUSED) return (*this)(ResumeAsked{});
    if (!HoldsDevices(job_.state())) {
      mover_.Change().set_resumed_unix_ms(mover_.now());
      return mover_.Stay();
    }
    if (job_.state() == v1::STARTING || input.force) {
      mover_.Change().set_resume_requested(true);
      return GiveBack(std::move(mover_));
    }
    RETURN_IF_ERROR(LosesNothing("requeue", "requeued"));
    if (job_.pause_requested() && !IsToPause(job_)) return mover_.Stay();
    return StopToRequeue(v1::REASON_NONE);
  }

  absl::StatusOr<Transition> operator()(const Preempted& input) {
    RETURN_IF_ERROR(MayStop());
    if (!HoldsDevices(job_.state())) return Illegal(job_, "it holds no devices");
    if (job_.pause_requested()) return Illegal(job_, "it stops already");
    RETURN_IF_ERROR(LosesNothing("preemption", "preempted"));
    mover_.Change().set_preempted_by(input.by);
    mover_.Change().set_preemptions(job_.preemptions() + 1);
    if (job_.state() == v1::RUNNING) return StopToRequeue(v1::REASON_PREEMPTED);
    mover_.Change().set_resume_requested(true);
    return GiveBack(std::move(mover_));
  }

  absl::StatusOr<Transition> operator()(const GrowAsked&) {
    RETURN_IF_ERROR(MayStop());
    if (job_.state() != v1::RUNNING) return Illegal(job_, "it does not run");
    if (job_.pause_requested()) return Illegal(job_, "it stops already");
    RETURN_IF_ERROR(LosesNothing("change of its workers", "stopped"));
    mover_.Change().set_preempted_by(job_.id());
    return StopToRequeue(v1::REASON_NONE);
  }

  // A job that waits for others keeps its epoch: it is 0 until the job has started once.
  absl::StatusOr<Transition> operator()(const RestoredFromBackup& input) {
    constexpr char kWhy[] = "the coordinator's state was restored from a backup";
    if (HasEnded(job_.state())) return mover_.Stay();
    if (job_.epoch() > 0 || job_.dependencies_size() == 0)
      mover_.Change().set_epoch(job_.epoch() + input.epochs_skipped);
    if (!HoldsDevices(job_.state())) return mover_.Stay();
    if (job_.cancel_requested()) {
      return mover_.To(v1::CANCELLED, v1::REASON_CANCELLED_BY_USER,
                       absl::StrCat("cancelled, without a last checkpoint: ", kWhy));
    }
    if (job_.time_limit_unix_ms() > 0) return EndAtLimit(std::move(mover_), kWhy);
    if (IsToPause(job_)) return Hold(std::move(mover_), kWhy);
    return mover_.To(v1::RECOVERING, v1::REASON_NONE,
                     absl::StrCat(kWhy, "; goes on from its newest checkpoint"));
  }

  absl::StatusOr<Transition> operator()(const DependencyFailed& input) {
    if (HasEnded(job_.state()) || job_.epoch() > 0) return Illegal(job_, "it has started");
    return mover_.To(v1::FAILED, v1::REASON_DEPENDENCY_FAILED, input.message);
  }

 private:
  static size_t WorkersOf(const v1::Placement& placement) {
    std::set<std::string> workers;
    for (const v1::Placement::Rank& rank : placement.ranks()) workers.insert(rank.worker());
    return workers.size();
  }

  // It has trained, and goes on with more or fewer workers than before.
  void NoteResize(const v1::Placement& placement) {
    constexpr int kKept = 16;  // a job is written with each change, and may change for months
    const v1::ResourceSpec& asked = job_.spec().resources();
    const size_t before = WorkersOf(job_.placement()), after = WorkersOf(placement);
    if (job_.epoch() == 0 || before == after || asked.nodes_max() <= asked.nodes_min()) return;
    auto& adjustments = *mover_.Change().mutable_adjustments();
    if (adjustments.size() >= kKept) adjustments.erase(adjustments.begin());
    v1::Adjustment* adjustment = adjustments.Add();
    adjustment->set_unix_ms(mover_.now());
    adjustment->set_step(job_.progress().checkpoint_step());
    adjustment->set_cause(
        absl::StrCat("resources.nodes: ", asked.nodes_min(), ":", asked.nodes_max()));
    const int ranks = placement.ranks_size();
    adjustment->set_change(absl::StrCat(after, after == 1 ? " worker" : " workers", " with ", ranks,
                                        ranks == 1 ? " rank" : " ranks", " instead of ", before,
                                        " with ", job_.placement().ranks_size()));
    *adjustment->mutable_layout() = job_.plan().layout();
  }

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

  // Whether it can be asked to give its devices back and go on later.
  absl::Status MayStop() const {
    if (HasEnded(job_.state())) return Illegal(job_, "it has ended already");
    if (job_.cancel_requested()) return Illegal(job_, "it is being cancelled");
    if (job_.time_limit_unix_ms() > 0) return Illegal(job_, "it ends, its time limit is reached");
    return absl::OkStatus();
  }

  absl::Status LosesNothing(std::string_view what, std::string_view done) const {
    if (!SavesNothing(job_)) return absl::OkStatus();
    return Illegal(
        job_, absl::StrCat("it saves no checkpoints (checkpoint.save: never), and a ", Absl(what),
                           " would lose its ", job_.progress().step(),
                           " steps; with --force it is ", Absl(done), " and begins again"));
  }

  // Its ranks stop after a checkpoint. Where they have been told to already it only goes back into
  // the queue instead of a pause.
  Transition StopToRequeue(v1::Reason reason) {
    mover_.Change().set_pause_requested(true);
    mover_.Change().set_resume_requested(true);
    return mover_.To(v1::RUNNING, reason, GivesBackText(mover_.job()));
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
