// What the web page asks for, as JSON, under /api/v1:
//
//   GET  jobs?state=&q=&offset=&limit=    rows, the newest first, and how many there are by state
//   GET  jobs/ID                          the Job message
//   GET  jobs/ID/history                  its life as columns (proto/v1/history.proto)
//   GET  jobs/ID/events?after=&wait=      newer events; waits `wait` seconds (30 at most) for some
//   GET  jobs/ID/memory                   what its ranks hold now
//   GET  jobs/ID/logs?rank=&tail=         the log's end, or what came after &epoch=&offset=
//   GET  jobs/ID/plan                     the plan's page (HTML)
//   GET  nodes
//   POST jobs/ID/cancel?force=            these need Authorization: Bearer TOKEN
//   POST jobs/ID/pause?force=
//   POST jobs/ID/resume
//
// An error is {"error": one sentence} with the HTTP code of its kind. All text in it may come from
// outside: it is JSON, and the page shows it as text.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/http/http_server.h"
#include "coordinator/control/control.h"

namespace terrace {

// What somebody with the operator's token asked for, and what came of it.
struct WebChange {
  std::string call;  // "Cancel"
  std::string job;
  bool force = false;
  absl::Status status;
};

class WebApi {
 public:
  // `control` is borrowed. Nothing can be changed with an empty token. `changed` is told of each
  // change on the control loop; it may be null.
  WebApi(Control& control, std::string operator_token,
         std::function<void(const WebChange&)> changed = nullptr)
      : control_(control),
        operator_token_(std::move(operator_token)),
        changed_(std::move(changed)) {}

  void Answer(const HttpRequest& request, HttpServer::Reply reply);

 private:
  struct Call {
    HttpRequest request;
    std::string job;  // of jobs/ID
    HttpServer::Reply reply;
  };
  void AnswerJob(std::string_view what, Call call);
  void Jobs(const Call& call);
  void Job(const Call& call);
  void History(const Call& call);
  void Memory(const Call& call);
  void Nodes(const Call& call);
  void Events(const Call& call);
  void Logs(const Call& call);
  void Plan(const Call& call);
  void Cancel(const Call& call);
  void Pause(const Call& call);
  void Resume(const Call& call);
  // OK: the call may change something.
  absl::Status CheckOperator(const Call& call) const;
  // What an operator asks for a job, with force=0 or 1.
  void Change(const Call& call, const char* name,
              std::function<absl::StatusOr<v1::Job>(bool force)> change);
  // Runs on the control loop; answered with 503 once that has stopped.
  void OnLoop(Call call, void (WebApi::*work)(const Call&));

  Control& control_;
  const std::string operator_token_;
  const std::function<void(const WebChange&)> changed_;
};

}  // namespace terrace
