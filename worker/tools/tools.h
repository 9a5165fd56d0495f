// The subcommands of terrace-rank, one file each. Each adds itself to the command line; its
// callback sets `exit_code` (base/exit_code.h).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "CLI/App.hpp"

namespace terrace {

void AddRunTool(CLI::App* app, char** argv, int* exit_code);       // tool_run.cc
void AddProbeTool(CLI::App* app, char** argv, int* exit_code);     // tool_probe.cc
void AddGenerateTool(CLI::App* app, char** argv, int* exit_code);  // tool_generate.cc
void AddDevicesTool(CLI::App* app, int* exit_code);                // tool_devices.cc
void AddFileTools(CLI::App* app, int* exit_code);                  // tool_files.cc: tokenize, ckpt

}  // namespace terrace
