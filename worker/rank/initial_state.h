// Persistent memory at the start of a run, apart from weights and optimizer state
// (worker/checkpoint fills those). Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "proto/v1/program.pb.h"

namespace terrace {

// Zeroes the persistent buffers, which the dry pass left with garbage, and computes the rotary
// tables.
void FillInitialState(const v1::Program& program, std::span<std::byte* const> arenas, int threads);

}  // namespace terrace
