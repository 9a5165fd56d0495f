// What a rank's measured timeline says in one table: for each operation of the last step that it
// holds, how often it ran, for how long, and its part of the step.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace terrace {

// `trace`: JSON trace events as ranks write them. Slices of different streams overlap, so that
// shares may sum to more than 100 %. DATA_LOSS when it is not such a trace.
absl::StatusOr<std::string> TraceSummary(std::string_view trace);

}  // namespace terrace
