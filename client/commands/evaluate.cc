// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/paths/new_file.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/process.h"
#include "client/spec_exec.h"
#include "client/spec_file.h"
#include "proto/drawing/evaluation_page.h"
#include "proto/report/evaluation_progress.h"
#include "proto/report/evaluation_text.h"

namespace terrace {
namespace {

int EvaluateHere(const GlobalOptions& global, const EvaluateOptions& options,
                 const std::string& yaml) {
  const auto program = SiblingProgram("terrace-coordinator");
  if (!program.ok()) return Fail(global, program.status());
  const auto spec = SpecForExec(options.spec_path, yaml);
  if (!spec.ok()) return Fail(global, spec.status());
  std::vector<std::string> arguments = {"evaluate",
                                        "--spec",
                                        *spec,
                                        "-o",
                                        global.json() ? "json" : "text",
                                        "--seconds",
                                        absl::StrCat(options.seconds)};
  if (!options.profile.empty()) {
    arguments.insert(arguments.end(), {"--profile", options.profile});
  }
  if (!options.cluster.empty()) {
    arguments.insert(arguments.end(), {"--cluster", options.cluster});
  }
  if (!options.html.empty()) arguments.insert(arguments.end(), {"--html", options.html});
  if (options.brief) arguments.push_back("--brief");
  return Fail(global, Exec(*program, arguments));
}

absl::StatusOr<v1::Evaluation> EvaluateThere(const GlobalOptions& global,
                                             const EvaluateOptions& options,
                                             const v1::SubmitRequest& spec) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return connection.status();
  v1::EvaluateRequest request;
  request.set_yaml(spec.yaml());
  request.set_base_directory(spec.base_directory());
  request.set_seconds(options.seconds);
  request.set_brief(options.brief);
  EvaluationProgressLine shown(isatty(STDERR_FILENO) == 1);
  return (*connection)->Evaluate(request, [&shown](const v1::EvaluationProgress& progress) {
    shown.Show(progress);
  });
}

}  // namespace

// With a coordinator it is about its workers; without one about this machine, or what --cluster
// names.
int EvaluateCommand(const GlobalOptions& global, const EvaluateOptions& options) {
  const auto spec = ReadSpecFile(options.spec_path);
  if (!spec.ok()) return Fail(global, spec.status());
  if (!global.coordinator_given || !options.cluster.empty()) {
    return EvaluateHere(global, options, spec->yaml());
  }
  const auto evaluation = EvaluateThere(global, options, *spec);
  if (!evaluation.ok()) return Fail(global, evaluation.status());
  if (!options.html.empty()) {
    const std::string page = EvaluationPage(*evaluation);
    if (const absl::Status written = WriteOutput(options.html, page); !written.ok()) {
      return Fail(global, written);
    }
    std::fprintf(stderr, "wrote %s, %zu bytes\n", options.html.c_str(), page.size());
  }
  const std::string text =
      global.json() ? EvaluationJson(*evaluation) : EvaluationText(*evaluation);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace terrace
