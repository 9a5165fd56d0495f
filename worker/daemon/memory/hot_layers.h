// The layers of a model that need most memory in a step, by tier: what /metrics shows of each rank,
// so that one sees which of them a smaller layout should take.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/report/live_memory.h"
#include "proto/v1/program.pb.h"

namespace terrace {

inline constexpr size_t kHotLayersMax = 8;  // of each tier: layers are many, and series are dear

struct HotLayer {
  v1::Tier tier = v1::TIER_UNSPECIFIED;
  std::string layer;  // "layer 3", "head"
  int64_t bytes = 0;  // the most that its buffers hold at any moment of a training step
};

// Of each tier in order, the largest first.
std::vector<HotLayer> HotLayersOf(const v1::Program& program, const LiveMemory& live);

}  // namespace terrace
