// Values that are offloaded while nothing on the device uses them: gradients between the
// micro-batches and until the optimizer, activations between forward and backward.
//
// After a live range (live_ranges.h) that wrote, such a value is copied to its home on another
// tier; before a later one it is prefetched (fetch.h) into device memory of its own. Operations are
// the same as without, so results are as well, to the bit.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "coordinator/compiler/tiers/tiers.h"

namespace terrace::compiler {

struct Offloaded {
  int value = kNone;  // outermost, STEP; whole pages with written padding where the tier is NVMe
  v1::Tier tier = v1::HOST;
  bool needed_after = false;  // what the last range wrote is read from its home
};

// Rewrites the sequence of the builder. Returns the homes, by value: STEP values of its shape. What
// has one live range and is not needed after has none.
std::map<int, int> OffloadValues(const std::vector<Offloaded>& values, int64_t chunk_bytes,
                                 Builder* builder);

// The activations of the sequence that are kept from forward to backward, with tiers by the shares.
std::vector<Offloaded> OffloadedActivations(const Graph& graph, const std::vector<Node>& nodes,
                                            const v1::TierShares& shares);

}  // namespace terrace::compiler
