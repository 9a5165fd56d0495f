// Persistent memory at the start of a run, apart from weights and optimizer state
// (worker/checkpoint fills those). Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "absl/status/status.h"
#include "proto/v1/program.pb.h"
#include "worker/memory/region.h"

namespace terrace {

// Zeroes the persistent buffers, which the dry pass left with garbage, and computes the rotary
// tables. `regions`: by Arena.id. What lies on NVMe is left alone: the file is new and reads zero
// (no dry pass touches it), and writing it would cost minutes and wear. Fails as Region::Write
// does.
absl::Status FillInitialState(const v1::Program& program, std::span<Region* const> regions,
                              int threads);

}  // namespace terrace
