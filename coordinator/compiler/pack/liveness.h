// When a STEP buffer lives, under happens-before: two buffers may share bytes only if every access
// to one is ordered before every access to the other by streams and waits.
//
// Out: a life [begin, end) per buffer on a common integer axis such that disjoint lives imply that
// order. With one stream it is list order; a buffer that another stream touches is extended until
// its accesses are known to be ordered before whatever begins a buffer of the same arena after it.
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

struct Life {
  int64_t begin = 0;
  int64_t end = 0;  // begin == end: never used
};

// One life per Program.buffers entry, for the accesses of `sequence`. REQUIRES: streams and waits
// are set, and arenas exist.
std::vector<Life> Liveness(const v1::Program& program, const v1::Sequence& sequence);

}  // namespace terrace
