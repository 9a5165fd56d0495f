// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/text/duration.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/job_pages.h"
#include "client/print.h"
#include "client/table.h"

namespace terrace {
namespace {

constexpr int64_t kRows = 100;

std::string OrDash(std::string text) { return text.empty() ? "-" : std::move(text); }

// "12 m 30 s", "unknown", "-" of a job that does not wait.
std::string StartsIn(const v1::JobSummary& job, int64_t now_ms) {
  if (job.estimate().empty()) return "-";
  if (job.estimated_start_unix_ms() == 0) return "unknown";
  return FormatAge(now_ms, job.estimated_start_unix_ms());
}

v1::ListPageRequest RequestOf(const ListOptions& options) {
  v1::ListPageRequest request;
  request.set_all(options.all);
  for (const std::string& name : options.states) {
    v1::JobState state;  // the command line takes names of states only
    if (v1::JobState_Parse(name, &state)) request.add_states(state);
  }
  request.set_owner(options.owner);
  request.set_before(options.before);
  return request;
}

int64_t JobsIn(const v1::ListPageResponse& page) {
  int64_t jobs = 0;
  for (const v1::ListPageResponse::Count& count : page.counts()) jobs += count.jobs();
  return jobs;
}

// "500 RUNNING, 2000 QUEUED".
std::string CountsText(const v1::ListPageResponse& page) {
  std::string text;
  for (const v1::ListPageResponse::Count& count : page.counts())
    absl::StrAppend(&text, text.empty() ? "" : ", ", count.jobs(), " ",
                    Absl(StateName(count.state())));
  return text;
}

Table TableOf(const std::vector<v1::JobSummary>& jobs) {
  const auto any = [&](auto has) { return std::any_of(jobs.begin(), jobs.end(), has); };
  const bool limited = any([](const auto& job) { return job.time_limit_seconds() > 0; });
  const bool waiting = any([](const auto& job) { return !job.estimate().empty(); });
  const bool owned = any([](const auto& job) { return !job.owner().empty(); });
  std::vector<std::string> headers = {"JOB",      "STATE", "REASON",   "STEP", "LOSS",
                                      "TOKENS/S", "RANKS", "RESTARTS", "AGE",  "LEFT"};
  if (limited) headers.emplace_back("LIMIT");
  if (waiting) headers.emplace_back("STARTS IN");
  if (owned) headers.emplace_back("OWNER");
  Table table(headers);
  const int64_t now_ms = SystemClock().UnixMillis();
  for (const v1::JobSummary& job : jobs) {
    const bool stepped = job.step_seconds() > 0;
    std::vector<std::string> cells = {
        job.id(),
        std::string(StateName(job.state())),
        ReasonName(job.reason()),
        absl::StrCat(job.step(), "/", job.steps()),
        stepped ? absl::StrFormat("%.4f", job.loss()) : "-",
        stepped ? FormatCount(job.tokens_per_second()) : "-",
        absl::StrCat(job.ranks()),
        absl::StrCat(job.restarts()),
        FormatAge(job.submitted_unix_ms(), now_ms),
        job.remaining_seconds() > 0 ? FormatDuration(job.remaining_seconds()) : "-"};
    if (limited)
      cells.push_back(job.time_limit_seconds() > 0 ? SpanText(job.time_limit_seconds()) : "-");
    if (waiting) cells.push_back(StartsIn(job, now_ms));
    if (owned) cells.push_back(OrDash(job.owner()));
    table.Add(std::move(cells));
  }
  return table;
}

absl::Status ShowTable(Connection& connection, const ListOptions& options) {
  std::vector<v1::JobSummary> jobs;
  v1::ListPageResponse last;
  ASSIGN_OR_RETURN(const int64_t next,
                   VisitPages(connection, RequestOf(options), options.limit.value_or(kRows),
                              [&](const v1::ListPageResponse& page) {
                                jobs.insert(jobs.end(), page.summaries().begin(),
                                            page.summaries().end());
                                last = page;
                              }));
  std::fputs(TableOf(jobs).ToString().c_str(), stdout);
  const bool plain = options.states.empty() && options.owner.empty() && options.before == 0;
  if (jobs.empty() && plain && !options.all)
    std::printf("no job is waiting or running; ended ones: terrace ls --all\n");
  if (next != 0) {
    std::printf(
        "%zu of %lld jobs (%s), the newest first; --before %lld shows the next ones, --limit 0 "
        "all, --state and --owner fewer\n",
        jobs.size(), static_cast<long long>(JobsIn(last)), CountsText(last).c_str(),
        static_cast<long long>(next));
  }
  return absl::OkStatus();
}

// One object with whole jobs, a line each. All pages come first: half an object is no JSON.
absl::Status ShowJson(Connection& connection, const ListOptions& options) {
  v1::ListPageRequest request = RequestOf(options);
  request.set_whole(true);
  std::string text;
  int64_t matching = 0;
  ASSIGN_OR_RETURN(const int64_t next, VisitPages(connection, request, options.limit.value_or(0),
                                                  [&](const v1::ListPageResponse& page) {
                                                    for (const v1::Job& job : page.jobs())
                                                      absl::StrAppend(
                                                          &text, text.empty() ? "\n" : ",\n",
                                                          ToJson(job, /*pretty=*/false));
                                                    matching = JobsIn(page);
                                                  }));
  std::printf("{\"jobs\": [%s\n], \"matching\": %lld, \"next\": %lld}\n", text.c_str(),
              static_cast<long long>(matching), static_cast<long long>(next));
  return absl::OkStatus();
}

}  // namespace

int ListCommand(const GlobalOptions& global, const ListOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const absl::Status status =
      global.json() ? ShowJson(**connection, options) : ShowTable(**connection, options);
  return status.ok() ? 0 : Fail(global, status);
}

}  // namespace terrace
