// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/stops.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/life/gang_failure.h"
#include "coordinator/life/time_limit.h"

namespace terrace {
namespace {

// What a paused job says of itself.
std::string HeldText(const v1::Job& job) {
  const std::string point = job.epoch() == 0 ? "takes its place in the queue"
                                             : absl::StrCat("goes on ", RestartPoint(job));
  return absl::StrCat(point, " when it is resumed: terrace resume ", job.id());
}

// Behind what it says of itself while it is asked to stop.
std::string HangAside(const v1::Job& job) {
  return job.has_hang() ? absl::StrCat(", when it goes on: ", job.hang().message(),
                                       "; --force does not wait for that")
                        : "";
}

}  // namespace

bool SavesNothing(const v1::Job& job) { return job.spec().checkpoint().save() == "never"; }

std::string RestartPoint(const v1::Job& job) {
  const int64_t step = job.progress().checkpoint_step();
  return step == 0 ? "from the beginning (no checkpoint yet)"
                   : absl::StrCat("from the checkpoint of step ", step);
}

bool IsToPause(const v1::Job& job) { return job.pause_requested() && !job.resume_requested(); }

Transition Hold(Mover mover, std::string_view why) {
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

Transition GiveBack(Mover mover) {
  mover.Change().mutable_progress()->clear_activity();
  const v1::Job& job = mover.job();
  const std::string& other = job.preempted_by();
  if (other.empty()) return mover.To(v1::QUEUED, v1::REASON_NONE, "");
  if (other == job.id())
    return mover.To(v1::QUEUED, v1::REASON_NONE,
                    absl::StrCat("goes on ", RestartPoint(job), " with more workers"));
  std::string text =
      absl::StrCat("gave its devices to job ", other, "; goes on ", RestartPoint(job));
  return mover.To(v1::QUEUED, v1::REASON_PREEMPTED, std::move(text));
}

Transition EndAtLimit(Mover mover, std::string_view why) {
  const v1::Job& job = mover.job();
  const std::string point = job.progress().checkpoint_step() == 0
                                ? "it has written no checkpoint"
                                : absl::StrCat("submit it again to go on ", RestartPoint(job));
  return mover.To(v1::FAILED, v1::REASON_TIME_LIMIT,
                  absl::StrCat("its ", TimeLimitText(job.spec()), " was reached at step ",
                               job.progress().step(), " of ", job.spec().train().steps(),
                               why.empty() ? "" : ", ", Absl(why), "; ", point));
}

Transition Recover(Mover mover, v1::Reason reason, const std::string& what, const RankView* lost) {
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

// ---- until its ranks have stopped -------------------------------------------------------------

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
std::string GivesBackText(const v1::Job& job) {
  const std::string why = job.preempted_by().empty() ? "and waits in the queue again"
                          : job.preempted_by() == job.id()
                              ? "to go on with more workers"
                              : absl::StrCat("for job ", job.preempted_by(),
                                             ", which has a higher priority and needs its devices");
  return absl::StrCat("stops after a checkpoint ", why, HangAside(job));
}

}  // namespace terrace
