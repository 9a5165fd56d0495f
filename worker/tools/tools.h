// The subcommands of terrace-rank, one file each. Each adds itself to the command line; its
// callback sets `exit_code` (base/exit_code.h).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "CLI/App.hpp"

namespace terrace {

void AddRunTool(CLI::App* app, char** argv, int* exit_code);       // run.cc
void AddProbeTool(CLI::App* app, char** argv, int* exit_code);     // probe.cc
void AddGenerateTool(CLI::App* app, char** argv, int* exit_code);  // generate.cc
void AddServeTool(CLI::App* app, char** argv, int* exit_code);     // serve.cc
void AddEvalTool(CLI::App* app, char** argv, int* exit_code);      // eval.cc
void AddDevicesTool(CLI::App* app, int* exit_code);                // devices.cc
void AddFileTools(CLI::App* app, int* exit_code);                  // files.cc: tokenize, ckpt

}  // namespace terrace
