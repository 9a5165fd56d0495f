// Greedy packing towards a given ceiling: what lives long goes first, by time, to one end of the
// arena; the rest, by size, to the lowest, the highest or the tightest hole below the ceiling.
//
// For programs in which a few large buffers have to find a hole again and again while the frames of
// micro-batches come and go, as with ZeRO-3 and pipelines: there the frames must lie together, and
// which lives are frames shows in the gaps between the lengths of lives. Many combinations are
// tried, then the best ones are improved: what ended up above the ceiling goes first next time.
//
// In: a problem, the ceiling, how many items may be placed in all. Out: the best placement met.
// Deterministic: integer keys, ties by index. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coordinator/compiler/pack_problem.h"

namespace terrace {

// Stops at the first placement below the ceiling. Without offsets when `placements` allows none.
// REQUIRES: at least one item.
PackPlacement PackBelow(const PackProblem& problem, int64_t ceiling_bytes, int64_t placements);

}  // namespace terrace
