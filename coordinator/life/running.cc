// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/running.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/life/hang.h"
#include "coordinator/life/stops.h"
#include "coordinator/life/time_limit.h"

namespace terrace {
namespace {

bool HasSucceeded(const v1::RankReport& report) { return report.state() == v1::RANK_SUCCEEDED; }
bool HasDoneAllSteps(const v1::RankReport& report) {
  return HasSucceeded(report) && !report.stopped_early();
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

std::string DeadlineText(const v1::WatchdogSpec& watchdog) {
  if (watchdog.on_hang() != "restart") return "";
  return absl::StrCat("; restarts after ", watchdog.timeout_seconds(), " s of that");
}

}  // namespace

bool All(absl::Span<const RankView> ranks, bool (*holds)(const v1::RankReport&)) {
  return std::all_of(ranks.begin(), ranks.end(), [holds](const RankView& view) {
    return view.presence == Presence::kReported && holds(view.report);
  });
}

Transition Hang(Mover mover, const v1::Hang& hang) {
  const v1::JobState state = mover.job().state();
  if (mover.job().has_hang() && IsSameHang(mover.job().hang(), hang)) return mover.Stay();
  *mover.Change().mutable_hang() = hang;
  return mover.To(state, v1::REASON_RANK_HANGS,
                  absl::StrCat(hang.message(), DeadlineText(mover.job().spec().watchdog())));
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
      if (mover.job().pause_requested()) return GiveBack(std::move(mover));
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
               : mover.To(v1::RUNNING, v1::REASON_NONE, GivesBackText(mover.job()));
  }
  return mover.To(
      v1::RUNNING, v1::REASON_NONE,
      leaving.why.empty() ? "" : absl::StrCat("moves after a checkpoint: ", leaving.why));
}

}  // namespace terrace
