// The options of `serve` about the queue.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "coordinator/queue/options.h"

namespace terrace {

// `queue` must outlive the parsing. A value that is none ends it with CLI::ValidationError.
void AddQueueFlags(CLI::App& app, QueueOptions& queue);

}  // namespace terrace
