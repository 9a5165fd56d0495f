// By how much the closed form of memory (estimate_memory.h) may be too high, by kind of layout:
// what it says needs more than a tier has by more than this is not worth compiling.
//
// A layout moves bytes between tiers in ways that the closed form rounds up: where weights come and
// go for each use, how many of them are there at a time depends on the order of passes. The bounds
// are the most that was measured (tests/bench/closed_form_bench.cc, results/closed_form-*.md) and a
// little more. Tests hold compiled layouts to them.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "proto/v1/plan.pb.h"

namespace terrace {

// Of small models it is off by more, as not all of what it counts is needed (buffers that copies
// pass through, tiles), but by no more bytes than these.
inline constexpr int64_t kClosedFormSlackBytes = int64_t{128} << 20;

// Of nineteen layouts of twenty it is too high by no more than this.
inline constexpr double kClosedFormLikely = 1.3;

// Closed form over compiled, at most, but for the slack.
struct ClosedFormBounds {
  std::string_view kind;  // in words
  double device = 1;
  double host = 1;
  double nvme = 1;
};
ClosedFormBounds BoundsOf(const v1::Layout& layout);

}  // namespace terrace
