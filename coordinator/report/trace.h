// The simulated step in the JSON trace event format that Perfetto (ui.perfetto.dev) and
// chrome://tracing open, with the names and arguments of the traces that ranks measure
// (worker/rank/trace.h), so that both can be looked at side by side: one process a stage, one
// thread a stream, one slice an instruction.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coordinator/prepare.h"

namespace terrace {

std::string PlanTrace(const Prepared& prepared);

}  // namespace terrace
