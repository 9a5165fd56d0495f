// terrace-rank: executes programs. Wiring only; each subcommand is a file of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "CLI/CLI.hpp"
#include "base/command_line.h"
#include "worker/tools/tools.h"

int main(int argc, char** argv) {
  CLI::App app("Executes Terrace programs on one device");
  app.require_subcommand(1);
  int exit_code = 0;
  terrace::AddRunTool(&app, argv, &exit_code);
  terrace::AddProbeTool(&app, argv, &exit_code);
  terrace::AddGenerateTool(&app, argv, &exit_code);
  terrace::AddServeTool(&app, argv, &exit_code);
  terrace::AddEvalTool(&app, argv, &exit_code);
  terrace::AddDevicesTool(&app, &exit_code);
  terrace::AddFileTools(&app, &exit_code);
  terrace::TakeWholeNumbersAsWritten(app);
  CLI11_PARSE(app, argc, argv);
  return terrace::CloseOutput("terrace", exit_code);
}
