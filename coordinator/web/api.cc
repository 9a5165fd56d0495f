// SPDX-License-Identifier: Apache-2.0
#include "coordinator/web/api.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/control/submit.h"
#include "coordinator/life/job_state.h"
#include "coordinator/web/event_wait.h"
#include "coordinator/web/json.h"

namespace terrace {
namespace {

constexpr int64_t kRowsMax = 1000;
constexpr int64_t kRowsSkippedMax = 1'000'000;
constexpr int64_t kEventsMax = 1000;  // in one answer
constexpr int64_t kWaitSecondsMax = 30;
constexpr int64_t kTailLinesMax = 10'000;
constexpr size_t kLogBytesMax = 1 << 20;  // in one answer

// A number of the query; `otherwise` where it is absent.
absl::StatusOr<int64_t> Number(const HttpRequest& request, std::string_view key, int64_t otherwise,
                               int64_t least, int64_t most) {
  const auto found = request.query.find(key);
  if (found == request.query.end()) return otherwise;
  int64_t number = 0;
  if (absl::SimpleAtoi(found->second, &number) && number >= least && number <= most) return number;
  return absl::InvalidArgumentError(absl::StrCat(Absl(key), ": got \"",
                                                 CleanLine(found->second, 64), "\", must be from ",
                                                 least, " to ", most));
}

std::string Text(const HttpRequest& request, std::string_view key) {
  const auto found = request.query.find(key);
  return found == request.query.end() ? "" : found->second;
}

// "active", "ended", the name of a state, or "" for all.
absl::StatusOr<std::vector<v1::JobState>> StatesOf(const std::string& text) {
  std::vector<v1::JobState> states;
  v1::JobState one;
  if (v1::JobState_Parse(text, &one)) states.push_back(one);
  if (text == "active" || text == "ended") {
    for (int i = v1::JobState_MIN + 1; i <= v1::JobState_MAX; ++i) {
      const auto state = static_cast<v1::JobState>(i);
      if (HasEnded(state) == (text == "ended")) states.push_back(state);
    }
  }
  if (!states.empty() || text.empty()) return states;
  return absl::InvalidArgumentError(
      absl::StrCat("state: got \"", CleanLine(text, 64),
                   "\", must be active, ended or a state as jobs have it, such as RUNNING"));
}

absl::StatusOr<JobFilter> FilterOf(const HttpRequest& request) {
  JobFilter filter{.owner = Text(request, "owner"), .text = Text(request, "q")};
  ASSIGN_OR_RETURN(filter.states, StatesOf(Text(request, "state")));
  return filter;
}

absl::StatusOr<PageOf> PageOfQuery(const HttpRequest& request) {
  PageOf page;
  ASSIGN_OR_RETURN(page.skipped, Number(request, "offset", 0, 0, kRowsSkippedMax));
  ASSIGN_OR_RETURN(page.limit, Number(request, "limit", 100, 1, kRowsMax));
  return page;
}

absl::StatusOr<v1::LogsRequest> LogsRequestOf(const HttpRequest& request, const std::string& job) {
  v1::LogsRequest logs;
  logs.set_id(job);
  ASSIGN_OR_RETURN(const int64_t rank, Number(request, "rank", 0, 0, UINT32_MAX));
  logs.set_rank(static_cast<uint32_t>(rank));
  if (request.query.contains("offset")) {
    ASSIGN_OR_RETURN(const int64_t epoch, Number(request, "epoch", 0, 0, INT64_MAX));
    ASSIGN_OR_RETURN(const int64_t offset, Number(request, "offset", 0, 0, INT64_MAX));
    logs.mutable_after()->set_epoch(epoch);
    logs.mutable_after()->set_offset(offset);
  } else {
    ASSIGN_OR_RETURN(const int64_t tail, Number(request, "tail", 200, 1, kTailLinesMax));
    logs.set_tail_lines(tail);
  }
  return logs;
}

// Takes as long for every wrong token.
bool IsSame(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

void WebApi::Answer(const HttpRequest& request, HttpServer::Reply reply) {
  constexpr std::string_view kRoot = "/api/v1/", kJobs = "jobs/";
  std::string_view path = request.path;
  Call call{.request = request, .job = "", .reply = std::move(reply)};
  const auto nothing = [&] {
    call.reply(ErrorResponse(absl::NotFoundError("the API has nothing under this path")));
  };
  if (!path.starts_with(kRoot)) return nothing();
  path.remove_prefix(kRoot.size());
  const bool is_get = request.method == "GET";
  if (is_get && path == "jobs") return OnLoop(std::move(call), &WebApi::Jobs);
  if (is_get && path == "nodes") return OnLoop(std::move(call), &WebApi::Nodes);
  if (!path.starts_with(kJobs)) return nothing();
  path.remove_prefix(kJobs.size());
  const size_t slash = path.find('/');
  call.job = std::string(path.substr(0, slash));
  AnswerJob(slash == std::string_view::npos ? "" : path.substr(slash + 1), std::move(call));
}

void WebApi::AnswerJob(std::string_view what, Call call) {
  struct Route {
    std::string_view method, what;
    void (WebApi::*work)(const Call&);
  };
  constexpr Route kRoutes[] = {
      {"GET", "", &WebApi::Job},           {"GET", "history", &WebApi::History},
      {"GET", "memory", &WebApi::Memory},  {"GET", "events", &WebApi::Events},
      {"GET", "logs", &WebApi::Logs},      {"GET", "plan", &WebApi::Plan},
      {"POST", "cancel", &WebApi::Cancel}, {"POST", "pause", &WebApi::Pause},
      {"POST", "resume", &WebApi::Resume},
  };
  for (const Route& route : kRoutes) {
    if (route.method == call.request.method && route.what == what)
      return OnLoop(std::move(call), route.work);
  }
  call.reply(ErrorResponse(absl::NotFoundError("the API has nothing under this path")));
}

void WebApi::OnLoop(Call call, void (WebApi::*work)(const Call&)) {
  control_.loop().Post([this, call = std::move(call), work] { (this->*work)(call); });
}

void WebApi::Jobs(const Call& call) {
  const absl::StatusOr<JobFilter> filter = FilterOf(call.request);
  if (!filter.ok()) return call.reply(ErrorResponse(filter.status()));
  const absl::StatusOr<PageOf> page = PageOfQuery(call.request);
  if (!page.ok()) return call.reply(ErrorResponse(page.status()));
  const auto jobs = control_.reconciler().ListPage(*filter, *page);
  if (!jobs.ok()) return call.reply(ErrorResponse(jobs.status()));
  call.reply(JsonResponse(RowsJson(*jobs, control_.reconciler().JobsOfStates(),
                                   !operator_token_.empty(), SystemClock().UnixMillis())));
}

void WebApi::Job(const Call& call) {
  const auto job = control_.reconciler().Get(call.job);
  call.reply(job.ok() ? MessageResponse(*job) : ErrorResponse(job.status()));
}

void WebApi::History(const Call& call) {
  const auto history = control_.reconciler().HistoryOf(call.job);
  call.reply(history.ok() ? JsonResponse(HistoryJson(*history)) : ErrorResponse(history.status()));
}

void WebApi::Memory(const Call& call) {
  const auto memory = control_.reconciler().Memory(call.job);
  call.reply(memory.ok() ? MessageResponse(*memory) : ErrorResponse(memory.status()));
}

void WebApi::Nodes(const Call& call) {
  v1::ListNodesResponse nodes;
  for (v1::Node& node : control_.reconciler().Nodes()) *nodes.add_nodes() = std::move(node);
  call.reply(MessageResponse(nodes));
}

void WebApi::Events(const Call& call) {
  const auto after = Number(call.request, "after", 0, 0, INT64_MAX);
  const auto wait = Number(call.request, "wait", 0, 0, kWaitSecondsMax);
  if (!after.ok()) return call.reply(ErrorResponse(after.status()));
  if (!wait.ok()) return call.reply(ErrorResponse(wait.status()));
  WaitForEvents(control_, call.job, *after, absl::Seconds(*wait),
                [this, call, after = *after](const absl::Status& waited) {
                  if (!waited.ok()) return call.reply(ErrorResponse(waited));
                  const bool is_over = control_.reconciler().IsOver(call.job);
                  const auto events = control_.store().Events(call.job, after, kEventsMax);
                  if (!events.ok()) return call.reply(ErrorResponse(events.status()));
                  const int64_t last = events->empty() ? after : events->back().sequence();
                  const bool is_all = static_cast<int64_t>(events->size()) < kEventsMax;
                  call.reply(JsonResponse(EventsJson(*events, last, is_over && is_all)));
                });
}

void WebApi::Logs(const Call& call) {
  const auto request = LogsRequestOf(call.request, call.job);
  if (!request.ok()) return call.reply(ErrorResponse(request.status()));
  struct Log {
    std::string text;
    v1::LogPosition position;
    uint64_t reader = 0;
    bool answered = false;
  };
  auto log = std::make_shared<Log>();
  const auto finish = [this, call, log](const absl::Status& status) {
    if (std::exchange(log->answered, true)) return;
    call.reply(status.ok() ? JsonResponse(LogJson(log->text, log->position))
                           : ErrorResponse(status));
    // Not at once: this may run inside the delivery of a chunk to this reader.
    control_.loop().Post([this, log] { control_.StopLog(log->reader); });
  };
  const auto reader = control_.ReadLog(*request, [log, finish](const v1::LogText& chunk) {
    log->text += chunk.text();
    if (chunk.has_position()) log->position = chunk.position();
    if (!chunk.error().empty()) return finish(absl::NotFoundError(chunk.error()));
    if (chunk.end() || log->text.size() >= kLogBytesMax) finish(absl::OkStatus());
  });
  if (!reader.ok()) return call.reply(ErrorResponse(reader.status()));
  log->reader = *reader;
  control_.CallAfter(absl::Seconds(10), [finish] {
    finish(absl::UnavailableError("the worker that keeps this log did not answer in 10 s"));
  });
}

void WebApi::Plan(const Call& call) {
  DrawPlan(control_, call.job, [call](absl::StatusOr<std::string> page) {
    if (!page.ok()) return call.reply(ErrorResponse(page.status()));
    call.reply({.content_type = "text/html; charset=utf-8",
                .body = *std::move(page),
                .headers = {{"Content-Security-Policy",
                             "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
                             "frame-ancestors 'self'; sandbox"}}});
  });
}

absl::Status WebApi::CheckOperator(const Call& call) const {
  if (operator_token_.empty()) {
    return absl::PermissionDeniedError(
        "nothing can be changed here: the coordinator was started without --web-token-file");
  }
  std::string_view token = call.request.authorization;
  constexpr std::string_view kScheme = "Bearer ";
  if (token.starts_with(kScheme)) token.remove_prefix(kScheme.size());
  if (IsSame(token, operator_token_)) return absl::OkStatus();
  return absl::UnauthenticatedError(token.empty() ? "this needs the operator's token"
                                                  : "this is not the operator's token");
}

void WebApi::Change(const Call& call, const char* name,
                    std::function<absl::StatusOr<v1::Job>(bool force)> change) {
  if (const absl::Status status = CheckOperator(call); !status.ok())
    return call.reply(ErrorResponse(status));
  const auto force = Number(call.request, "force", 0, 0, 1);
  if (!force.ok()) return call.reply(ErrorResponse(force.status()));
  const auto job = change(*force == 1);
  if (changed_) {
    changed_({.call = name, .job = call.job, .force = *force == 1, .status = job.status()});
  }
  call.reply(job.ok() ? MessageResponse(*job) : ErrorResponse(job.status()));
}

void WebApi::Cancel(const Call& call) {
  Change(call, "Cancel", [&](bool force) { return control_.reconciler().Cancel(call.job, force); });
}

void WebApi::Pause(const Call& call) {
  Change(call, "Pause", [&](bool force) { return control_.reconciler().Pause(call.job, force); });
}

void WebApi::Resume(const Call& call) {
  Change(call, "Resume", [&](bool) { return control_.reconciler().Resume(call.job); });
}

}  // namespace terrace
