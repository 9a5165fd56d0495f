// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "base/clock.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/live_display.h"
#include "client/print.h"

namespace terrace {
namespace {

constexpr int kMaxReconnects = 60;

}  // namespace

int WatchCommand(const GlobalOptions& global, const WatchOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  auto job = (*connection)->Get(options.job);
  if (!job.ok()) return Fail(global, job.status());
  absl::StatusOr<RunLogs> logs = RunLogs::Open(options.logs, *job);
  if (!logs.ok()) return Fail(global, logs.status());
  SystemClock clock;
  LiveDisplay display(*job, StandardOutputIsTerminal(), TerminalColumns());
  v1::WatchJobRequest request;
  request.set_id(options.job);
  int reconnects = 0;
  while (true) {
    const absl::Status status = (*connection)->Watch(request, [&](const v1::JobEvent& event) {
      request.set_after_sequence(event.sequence());
      reconnects = 0;
      logs->Add(event);
      if (global.json()) {
        std::printf("%s\n", EventLine(event).c_str());
        std::fflush(stdout);
      } else {
        display.Show(event, clock.MonotonicNanos() / 1'000'000);
      }
      return true;
    });
    if (status.ok()) break;
    // A coordinator that restarts is no reason to stop watching: training goes on without it.
    if (status.code() != absl::StatusCode::kUnavailable || ++reconnects > kMaxReconnects)
      return Fail(global, status);
    (*connection)->PauseBeforeRetry();
  }
  display.Finish();
  job = (*connection)->Get(options.job);
  if (!job.ok()) return Fail(global, job.status());
  logs->Finish(*job);
  return HasEnded(job->state()) ? ExitCodeOfJob(*job) : 0;
}

}  // namespace terrace
