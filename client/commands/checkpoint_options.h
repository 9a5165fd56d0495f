// The options of the commands that work on checkpoints alone, without a service.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "client/options.h"

namespace terrace {

// All borrow `options`, which parsing fills.
void AddGenerateOptions(CLI::App* generate, GenerateOptions* options);
void AddServeOptions(CLI::App* serve, ServeOptions* options);
void AddEvalOptions(CLI::App* eval, EvalOptions* options);

}  // namespace terrace
