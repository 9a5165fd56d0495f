// STREAM's triad, a = b + scale * c (McCalpin 1995): what the bandwidth benchmarks measure
// themselves against. With streaming stores nothing is fetched but b and c. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace::bench {

enum class Stores { kPlain, kStreaming };

// REQUIRES: a is aligned to 64 bytes and n a multiple of 16.
void Triad(float* a, const float* b, const float* c, int64_t n, Stores stores);

}  // namespace terrace::bench
