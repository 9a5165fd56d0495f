// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/process.h"

namespace terrace {

// A spec file is compiled here; anything else is the id of a job that the coordinator knows.
int ExplainCommand(const GlobalOptions& global, const ExplainOptions& options) {
  std::error_code error;
  if (std::filesystem::is_regular_file(options.spec_or_job, error)) {
    const auto program = SiblingProgram("terrace-coordinator");
    if (!program.ok()) return Fail(global, program.status());
    std::vector<std::string> arguments = {"explain", "--spec", options.spec_or_job, "-o",
                                          global.json() ? "json" : "text"};
    if (!options.sequence.empty())
      arguments.insert(arguments.end(), {"--sequence", options.sequence});
    if (options.stage)
      arguments.insert(arguments.end(), {"--stage", std::to_string(*options.stage)});
    if (!options.cluster.empty()) arguments.insert(arguments.end(), {"--cluster", options.cluster});
    return Fail(global, Exec(*program, arguments));
  }
  if (!options.cluster.empty()) {
    return Fail(global, absl::InvalidArgumentError(
                            absl::StrCat("--cluster plans a spec file, and '", options.spec_or_job,
                                         "' is no file; give the path of a job spec")));
  }
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  v1::ExplainRequest request;
  request.set_id(options.spec_or_job);
  request.set_sequence(options.sequence);
  if (options.stage) request.set_stage(*options.stage);
  const auto response = (*connection)->Explain(request);
  if (!response.ok()) return Fail(global, response.status());
  if (global.json()) {
    PrintJson(*response);
  } else {
    std::fputs(response->text().c_str(), stdout);
  }
  return 0;
}

}  // namespace terrace
