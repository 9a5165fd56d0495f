// The simulated step in the JSON trace event format that Perfetto (ui.perfetto.dev) and
// chrome://tracing open, with the names and arguments of the traces that ranks measure
// (worker/train/trace.h), so that both can be looked at side by side: one process a stage, one
// thread a stream, one slice an instruction. Of large jobs only some stages, and if a stage alone
// is too long, only its longer instructions; the trace says so itself.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "coordinator/prepare/prepare.h"

namespace terrace {

// Slices of a trace; about 210 bytes each.
inline constexpr size_t kTraceSlicesMost = 60'000;

std::string PlanTrace(const Prepared& prepared, size_t slices_most);
std::string PlanTrace(const Prepared& prepared);  // of kTraceSlicesMost

}  // namespace terrace
