// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "base/text/duration.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/spec_file.h"

namespace terrace {

int SubmitCommand(const GlobalOptions& global, const SubmitOptions& options) {
  const auto request = ReadSpecFile(options.spec_path);
  if (!request.ok()) return Fail(global, request.status());
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto job = (*connection)->Submit(*request, options.hold);
  if (!job.ok()) return Fail(global, job.status());
  if (options.watch) return WatchCommand(global, {job->id()});
  if (global.json()) {
    PrintJson(*job);
  } else {
    for (const std::string& remark : job->plan().remarks())
      std::printf("note: %s\n", remark.c_str());
    const double planned = job->plan().time().total_seconds();
    const auto limit = static_cast<double>(job->spec().time_limit_seconds());
    if (limit > 0 && planned > limit) {
      std::printf(
          "note: its steps are planned to take %s, and its time limit is %s: it writes a "
          "checkpoint then and ends\n",
          FormatDuration(planned).c_str(), SpanText(job->spec().time_limit_seconds()).c_str());
    }
    std::printf("submitted %s\n%s: %s\nwatch it with: terrace watch %s\n", job->id().c_str(),
                std::string(StateName(job->state())).c_str(),
                job->message().empty() ? "accepted" : job->message().c_str(), job->id().c_str());
  }
  return 0;
}

}  // namespace terrace
