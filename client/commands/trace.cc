// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include "base/paths/new_file.h"
#include "base/status_macros.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/trace_summary.h"

namespace terrace {
namespace {

absl::StatusOr<std::string> Fetch(Connection& connection, const TraceOptions& options) {
  v1::LogsRequest request;
  request.set_id(options.job);
  request.set_rank(options.rank);
  request.set_trace(true);
  std::string trace;
  RETURN_IF_ERROR(
      connection.Logs(request, [&](const v1::LogsChunk& chunk) { trace += chunk.text(); }));
  return trace;
}

absl::Status Show(const GlobalOptions& global, const TraceOptions& options,
                  const std::string& trace) {
  if (!options.output_path.empty()) {
    RETURN_IF_ERROR(WriteOutput(options.output_path, trace));
    PrintWritten(global, {{options.output_path, trace.size()}}, ": open it with ui.perfetto.dev");
  } else if (global.json()) {
    std::fputs(trace.c_str(), stdout);
  } else {
    ASSIGN_OR_RETURN(const std::string table, TraceSummary(trace));
    std::fputs(table.c_str(), stdout);
  }
  return absl::OkStatus();
}

}  // namespace

int TraceCommand(const GlobalOptions& global, const TraceOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto trace = Fetch(**connection, options);
  if (!trace.ok()) return Fail(global, trace.status());
  const absl::Status shown = Show(global, options, *trace);
  return shown.ok() ? 0 : Fail(global, shown);
}

}  // namespace terrace
