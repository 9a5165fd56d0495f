// Values that leave the device while nothing there uses them: gradients between the micro-batches
// and until the optimizer, activations between forward and backward.
//
// After a bout of its uses (bouts.h) that wrote, such a value is copied to its home on another
// tier; before a later bout it is fetched (fetch.h) into device memory of its own. Operations are
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

struct Leaving {
  int value = kNone;  // outermost, STEP; whole pages with written padding where the tier is NVMe
  v1::Tier tier = v1::HOST;
  bool needed_after = false;  // what the last bout wrote is read from its home
};

// Rewrites the sequence of the builder. Returns the homes, by value: STEP values of its shape. What
// has one bout and is not needed after has none.
std::map<int, int> LeaveDevice(const std::vector<Leaving>& values, int64_t chunk_bytes,
                               Builder* builder);

// The activations of the sequence that are kept from forward to backward, with tiers by the shares.
std::vector<Leaving> LeavingActivations(const Graph& graph, const std::vector<Node>& nodes,
                                        const v1::TierShares& shares);

}  // namespace terrace::compiler
