// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/process.h"
#include "client/spec_exec.h"
#include "client/spec_file.h"
#include "proto/report/plan_json.h"
#include "proto/report/plan_text.h"

namespace terrace {
namespace {

// Made of the programs, which a coordinator keeps to itself until a job is submitted.
absl::Status CheckFilesAreMadeHere(const PlanOptions& options) {
  if (options.html.empty() && options.svg.empty() && options.trace.empty() && options.by.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--html, --svg, --trace and --by are for plans that are made here; leave --coordinator and "
      "TERRACE_COORDINATOR away, or name the hardware with --cluster");
}

}  // namespace

// With a coordinator the plan is for its workers; without one it is made here, for this machine or
// what the spec names.
int PlanCommand(const GlobalOptions& global, const PlanOptions& options) {
  auto request = ReadSpecFile(options.spec_path);
  if (!request.ok()) return Fail(global, request.status());
  if (!global.coordinator_given || !options.cluster.empty()) {
    const auto program = SiblingProgram("terrace-coordinator");
    if (!program.ok()) return Fail(global, program.status());
    const auto spec = SpecForExec(options.spec_path, request->yaml());
    if (!spec.ok()) return Fail(global, spec.status());
    std::vector<std::string> arguments = {"plan", "--spec", *spec, "-o",
                                          global.json() ? "json" : "text"};
    if (!options.profile.empty()) {
      arguments.insert(arguments.end(), {"--profile", options.profile});
    }
    if (!options.cluster.empty()) {
      arguments.insert(arguments.end(), {"--cluster", options.cluster});
    }
    if (!options.html.empty()) arguments.insert(arguments.end(), {"--html", options.html});
    if (!options.by.empty()) arguments.insert(arguments.end(), {"--by", options.by});
    if (!options.svg.empty()) arguments.insert(arguments.end(), {"--svg", options.svg});
    if (!options.trace.empty()) arguments.insert(arguments.end(), {"--trace", options.trace});
    return Fail(global, Exec(*program, arguments));
  }
  if (const absl::Status here = CheckFilesAreMadeHere(options); !here.ok()) {
    return Fail(global, here);
  }
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  request->set_dry_run(true);
  const auto job = (*connection)->Submit(*request);
  if (!job.ok()) return Fail(global, job.status());
  if (global.json()) {
    const PlanJsonExtras extras = {
        .model_name = ModelName(job->spec().model(), job->plan().model().family())};
    std::fputs(PlanJson(job->plan(), extras).c_str(), stdout);
  } else {
    std::fputs(PlanText(job->plan()).c_str(), stdout);
  }
  return 0;
}

}  // namespace terrace
