// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/text/number_format.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/sweep.h"
#include "proto/report/plan_text.h"

namespace terrace {
namespace {

void Line(const char* label, const std::string& text) {
  if (!text.empty()) std::printf("%-12s %s\n", label, text.c_str());
}

// "94 % training, 4 % queued, 2 % starting": the largest shares first, without what rounds to 0.
std::string SpentText(const v1::Job& job) {
  double whole = 0;
  std::vector<std::pair<double, std::string>> parts;
  for (const v1::SpentTime& spent : job.spent()) {
    whole += spent.seconds();
    parts.emplace_back(spent.seconds(), spent.cause());
  }
  if (whole <= 0) return "";
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = FormatDuration(whole) + ":";
  for (const auto& [seconds, cause] : parts) {
    const double percent = std::round(100 * seconds / whole);
    if (percent < 1) continue;
    absl::StrAppend(&text, text.back() == ':' ? " " : ", ", percent, " % ", cause);
  }
  return text;
}

std::string InBrackets(const std::string& reason) {
  return reason.empty() ? "" : absl::StrCat(" (", reason, ")");
}

// "noticed after 0.4 s, training again after 8.1 s"; empty where nothing was lost.
std::string RecoveryText(const v1::Restart& restart) {
  if (restart.detection_seconds() <= 0 && restart.recovery_seconds() <= 0) return "";
  std::string text;
  if (restart.reason() != v1::REASON_NONE) {  // a job that moves loses nothing
    absl::StrAppend(&text, "; noticed after ", FormatDuration(restart.detection_seconds()));
  }
  if (restart.recovery_seconds() > 0) {
    absl::StrAppend(&text, text.empty() ? "; " : ", ", "training again after ",
                    FormatDuration(restart.recovery_seconds()));
  }
  return text;
}

// "a-1 has succeeded, b-2 has ended": what must be so before it starts.
std::string AfterText(const v1::Job& job) {
  std::string text;
  for (const v1::Dependency& one : job.dependencies()) {
    const char* what = one.condition() == v1::DEPENDENCY_ENDED    ? "ended"
                       : one.condition() == v1::DEPENDENCY_FAILED ? "failed"
                                                                  : "succeeded";
    absl::StrAppend(&text, text.empty() ? "" : ", ", one.job(), " has ", what);
  }
  return text;
}

// A line for each reason why the job waits, and when it may start.
void PrintWaits(const v1::Job& job, int64_t now_ms) {
  for (const v1::Wait& wait : job.waits())
    Line("waits for", absl::StrCat(ReasonName(wait.reason()), ": ", wait.message()));
  if (job.estimate().empty()) return;
  Line("priority", absl::StrFormat("%.2f (asked: %d)", job.priority(), job.spec().priority()));
  Line("starts", job.estimated_start_unix_ms() == 0
                     ? job.estimate()
                     : absl::StrCat("in about ", FormatAge(now_ms, job.estimated_start_unix_ms()),
                                    ", ", job.estimate()));
}

void PrintValidation(const v1::Progress& progress) {
  const auto text = [](double loss, int64_t step) {
    return absl::StrFormat("%.4f after step %d", loss, step);
  };
  if (progress.eval_step() == 0) return;
  Line("validation", text(progress.eval_loss(), progress.eval_step()));
  const int64_t best = progress.best_eval_step();
  if (best == 0 || best == progress.eval_step()) return;
  Line("best", text(progress.best_eval_loss(), best));
}

// Prints which ranks the others wait for and since when, then one line for each rank that waits.
void PrintHang(const v1::Job& job, int64_t now_ms) {
  const v1::Hang& hang = job.hang();
  if (job.has_hang()) {
    std::string ranks;
    for (const uint32_t rank : hang.ranks())
      absl::StrAppend(&ranks, ranks.empty() ? "" : ", ", rank);
    const bool stopped = hang.process() == v1::PROCESS_STOPPED && hang.pid() > 0;
    Line("hangs", absl::StrCat("rank ", ranks, " for ", FormatAge(hang.since_unix_ms(), now_ms),
                               ", at ", hang.place(),
                               stopped ? absl::StrCat("; on ", hang.worker(), " kill -CONT ",
                                                      hang.pid(), " lets it go on")
                                       : ""));
  }
  for (const v1::Hang::Waiting& waiting : hang.waiting())
    Line("waits", absl::StrCat("rank ", waiting.rank(), " at ", waiting.place()));
  for (const v1::SlowRank& slow : job.slow_ranks()) {
    Line("slow",
         absl::StrFormat("rank %d on %s for %s: computes %.0f %% of the time, the others "
                         "%.0f %%, and wait %.0f %%",
                         slow.rank(), slow.worker(), FormatAge(slow.since_unix_ms(), now_ms),
                         100 * slow.computing_ratio(), 100 * slow.peers_computing_ratio(),
                         100 * slow.peers_waiting_ratio()));
  }
}

void PrintRestarts(const v1::Job& job, int64_t now_ms) {
  if (job.preemptions() > 0) {
    const std::string& by = job.preempted_by();  // itself where it gets more workers
    Line("preempted",
         absl::StrCat(job.preemptions(), job.preemptions() == 1 ? " time" : " times",
                      by.empty() || by == job.id() ? "" : absl::StrCat(", now by job ", by)));
  }
  Line("restarts", absl::StrCat(job.restarts()));
  constexpr int kShown = 4;
  for (int i = std::max(0, job.last_restarts_size() - kShown); i < job.last_restarts_size(); ++i) {
    const v1::Restart& restart = job.last_restarts(i);
    Line("restarted",
         absl::StrCat(FormatAge(restart.unix_ms(), now_ms), " ago ",
                      restart.step() == 0 ? "from the beginning"
                                          : absl::StrCat("from step ", restart.step()),
                      ": ", restart.message(), InBrackets(ReasonName(restart.reason())),
                      RecoveryText(restart)));
  }
}

void PrintStatus(const v1::Job& job) {
  const int64_t now_ms = SystemClock().UnixMillis();
  const v1::Progress& progress = job.progress();
  std::string state(StateName(job.state()));
  if (job.reason() != v1::REASON_NONE) absl::StrAppend(&state, " (", ReasonName(job.reason()), ")");
  Line("job", job.id());
  Line("state", state);
  Line("message", job.message());
  PrintWaits(job, now_ms);
  Line("after", AfterText(job));
  if (job.has_array()) {
    Line("sweep", absl::StrCat("job ", job.array().index() + 1, " of ", job.array().size(), " of ",
                               job.array().array(), ": ", ValuesText(job.array())));
  }
  PrintHang(job, now_ms);
  Line("submitted", FormatAge(job.submitted_unix_ms(), now_ms) + " ago" +
                        (job.owner().empty() ? "" : " by " + job.owner()));
  if (job.state() == v1::PAUSED) Line("paused", FormatAge(job.paused_unix_ms(), now_ms) + " ago");
  Line("step", absl::StrCat(progress.step(), " of ", job.spec().train().steps()));
  if (HasStepped(progress)) {
    Line("loss", absl::StrFormat("%.4f (grad norm %.3f)", progress.loss(), progress.grad_norm()));
    if (progress.loss_scale() > 0) {
      Line("loss scale", absl::StrCat(progress.loss_scale(), " (", progress.skipped_steps(),
                                      " steps skipped so far)"));
    }
    Line("speed", absl::StrCat(FormatCount(progress.tokens_per_second()), " tokens/s, ",
                               FormatDuration(progress.step_seconds()), " a step"));
  }
  PrintValidation(progress);
  Line("activity", progress.activity());
  Line("checkpoint", progress.checkpoint());
  if (progress.arena_bytes() > 0) {
    Line("memory",
         absl::StrCat(FormatBytes(progress.arena_bytes()), " arenas + ",
                      FormatBytes(progress.external_bytes()), " outside them, the largest rank",
                      progress.driver_bytes() > 0
                          ? absl::StrCat("; by the driver ", FormatBytes(progress.driver_bytes()))
                          : ""));
  }
  // Shorter steps vary too much with the scheduler for their time to judge the plan.
  constexpr double kTimedSecondsMin = 2e-3;
  if (const double planned = job.plan().time().step_seconds();
      planned > 0 && progress.step_seconds() >= kTimedSecondsMin) {
    Line("predicted",
         absl::StrFormat("%s a step: the last one took %.1f %% %s", FormatDuration(planned),
                         100 * std::abs(progress.step_seconds() / planned - 1),
                         progress.step_seconds() > planned ? "longer" : "less"));
  }
  Line("time", SpentText(job));
  Line("left", LeftText(job));
  Line("time limit", TimeLimitText(job));
  PrintRestarts(job, now_ms);
  for (const v1::Adjustment& adjustment : job.adjustments()) {
    if (adjustment.change().empty()) continue;  // it is still being sought
    Line("adjusted", absl::StrCat("from step ", adjustment.step(), ": ", adjustment.change(), " (",
                                  adjustment.cause(), ")"));
  }
  if (job.learned_external_bytes() > 0) {
    Line("learned", absl::StrCat("a rank needs ", FormatBytes(job.learned_external_bytes()),
                                 " outside its arenas"));
  }
  for (const v1::Placement::Rank& rank : job.placement().ranks()) {
    Line("rank", absl::StrCat(rank.rank(), " on ", rank.worker(), " device ", rank.device()));
  }
}

}  // namespace

int StatusCommand(const GlobalOptions& global, const JobOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto job = (*connection)->Get(options.job);
  if (!job.ok()) return Fail(global, job.status());
  if (global.json()) {
    PrintJson(*job);
  } else {
    PrintStatus(*job);
    if (job->has_plan()) std::printf("\n%s", PlanText(job->plan()).c_str());
  }
  return 0;
}

}  // namespace terrace
