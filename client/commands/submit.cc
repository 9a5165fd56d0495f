// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>
#include <vector>

#include "base/text/duration.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/spec_file.h"

namespace terrace {

namespace {

std::vector<v1::Dependency> DependenciesOf(const SubmitOptions& options) {
  std::vector<v1::Dependency> dependencies;
  const auto add = [&](const std::vector<std::string>& jobs, v1::DependencyCondition condition) {
    for (const std::string& job : jobs) {
      v1::Dependency& dependency = dependencies.emplace_back();
      dependency.set_job(job);
      dependency.set_condition(condition);
    }
  };
  add(options.after, v1::DEPENDENCY_SUCCEEDED);
  add(options.after_any, v1::DEPENDENCY_ENDED);
  add(options.after_failed, v1::DEPENDENCY_FAILED);
  return dependencies;
}

// Notes that the plan of a job is longer than its time limit.
void TellLimit(const v1::Job& job) {
  const int64_t limit = job.spec().time_limit_seconds();
  const double planned = job.plan().time().total_seconds();
  if (limit == 0 || planned <= static_cast<double>(limit)) return;
  std::printf(
      "note: its steps are planned to take %s, and its time limit is %s: it writes a "
      "checkpoint then and ends\n",
      FormatDuration(planned).c_str(), SpanText(limit).c_str());
}

}  // namespace

int SubmitCommand(const GlobalOptions& global, const SubmitOptions& options) {
  if (!options.sweeps.empty()) return SubmitSweep(global, options, DependenciesOf(options));
  const auto request = ReadSpecFile(options.spec_path);
  if (!request.ok()) return Fail(global, request.status());
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto job = (*connection)->Submit(*request, options.hold, DependenciesOf(options));
  if (!job.ok()) return Fail(global, job.status());
  if (options.watch) return WatchCommand(global, {job->id()});
  if (global.json()) {
    PrintJson(*job);
  } else {
    for (const std::string& remark : job->plan().remarks())
      std::printf("note: %s\n", remark.c_str());
    TellLimit(*job);
    std::printf("submitted %s\n%s: %s\nwatch it with: terrace watch %s\n", job->id().c_str(),
                std::string(StateName(job->state())).c_str(),
                job->message().empty() ? "accepted" : job->message().c_str(), job->id().c_str());
  }
  return 0;
}

}  // namespace terrace
