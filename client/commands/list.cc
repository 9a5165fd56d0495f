// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/text/duration.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/table.h"

namespace terrace {
namespace {

std::string OrDash(std::string text) { return text.empty() ? "-" : std::move(text); }

// "12 m 30 s", "unknown", "-" of a job that does not wait.
std::string StartsIn(const v1::Job& job, int64_t now_ms) {
  if (job.estimate().empty()) return "-";
  if (job.estimated_start_unix_ms() == 0) return "unknown";
  return FormatAge(now_ms, job.estimated_start_unix_ms());
}

}  // namespace

int ListCommand(const GlobalOptions& global, const ListOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto jobs = (*connection)->List(options.all);
  if (!jobs.ok()) return Fail(global, jobs.status());
  if (global.json()) {
    PrintJson(*jobs);
    return 0;
  }
  const int64_t now_ms = SystemClock().UnixMillis();
  const auto& all = jobs->jobs();
  const bool owned =
      std::any_of(all.begin(), all.end(), [](const v1::Job& job) { return !job.owner().empty(); });
  std::vector<std::string> headers = {"JOB",      "STATE", "REASON",   "STEP", "LOSS",
                                      "TOKENS/S", "RANKS", "RESTARTS", "AGE",  "LEFT"};
  const bool limited = std::any_of(all.begin(), all.end(), [](const v1::Job& job) {
    return job.spec().time_limit_seconds() > 0;
  });
  if (limited) headers.emplace_back("LIMIT");
  const bool waiting = std::any_of(all.begin(), all.end(),
                                   [](const v1::Job& job) { return !job.estimate().empty(); });
  if (waiting) headers.emplace_back("STARTS IN");
  if (owned) headers.emplace_back("OWNER");
  Table table(headers);
  for (const v1::Job& job : jobs->jobs()) {
    const v1::Progress& progress = job.progress();
    std::vector<std::string> cells = {
        job.id(),
        std::string(StateName(job.state())),
        ReasonName(job.reason()),
        absl::StrCat(progress.step(), "/", job.spec().train().steps()),
        HasStepped(progress) ? absl::StrFormat("%.4f", progress.loss()) : "-",
        HasStepped(progress) ? FormatCount(progress.tokens_per_second()) : "-",
        absl::StrCat(job.plan().layout().ranks()),
        absl::StrCat(job.restarts()),
        FormatAge(job.submitted_unix_ms(), now_ms),
        OrDash(LeftText(job))};
    if (limited) {
      const int64_t limit = job.spec().time_limit_seconds();
      cells.push_back(limit > 0 ? SpanText(limit) : "-");
    }
    if (waiting) cells.push_back(StartsIn(job, now_ms));
    if (owned) cells.push_back(OrDash(job.owner()));
    table.Add(std::move(cells));
  }
  std::fputs(table.ToString().c_str(), stdout);
  if (jobs->jobs().empty() && !options.all)
    std::printf("no job is waiting or running; ended ones: terrace ls --all\n");
  return 0;
}

}  // namespace terrace
