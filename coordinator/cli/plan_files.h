// The files that `terrace plan` writes beside what it prints: a page, its picture alone, a trace of
// the simulated step.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/prepare/prepare.h"

namespace terrace {

struct PlanFiles {
  std::string html, svg, trace;  // paths; empty: none
};

// Says on standard error what it wrote. An error of WriteOutput(), which names the path.
absl::Status WritePlanFiles(const Prepared& prepared, const PlanFiles& files);

}  // namespace terrace
