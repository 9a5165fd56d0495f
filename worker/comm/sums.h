// Element-wise sums of two vectors, as reductions add them: f32 in f32, bf16 in f32 and rounded to
// the nearest (ties to even). Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/comm/communicator.h"

namespace terrace {

// out = a + b over `bytes` bytes. out may be a or b.
using Adder = void (*)(std::byte* out, const std::byte* a, const std::byte* b, int64_t bytes);

Adder AdderOf(ReduceType type);
int64_t ElementBytes(ReduceType type);

}  // namespace terrace
