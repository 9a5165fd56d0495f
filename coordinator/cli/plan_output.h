// What `terrace plan` prints of a job prepared on this machine: a table, or JSON with what only the
// programs tell and what was measured while they were made.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coordinator/prepare/prepare.h"

namespace terrace {

// With `by_layer` also the memory of each layer.
std::string PlanOutput(const Prepared& prepared, double search_seconds, bool json, bool by_layer);

}  // namespace terrace
