// Just as much as is needed: how many layers of each stage are recomputed, and which part of
// the states rests on other tiers, so that a layout stays within bytes. By the closed form; what
// compiling shows to be too little is asked for again with smaller limits (prepare/search.h).
//
// Selective recompute is the cheapest in time for its bytes, then whole blocks; the first layers of
// a stage come first, since what is recomputed of them is there when the others' activations
// are gone. Of the states the optimizer's leave first, the least travelled, then weights.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/planner/estimate_memory.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Of the arenas of a rank; 0: no limit.
struct ArenaLimits {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
};
bool Within(const MemoryEstimate& memory, const ArenaLimits& limits);

// `layout` with the least recompute with which every stage keeps to its bytes, `recompute` naming
// the strongest; nothing when none does.
std::optional<v1::Layout> WithRecompute(const MemoryEstimator& estimator, v1::Layout layout,
                                        const std::vector<int64_t>& stage_bytes);

// Ways to leave the device, the one that costs least time first.
enum class OffloadWay {
  kOptimizerToHost,
  kWeightsToHostToo,
  kActivationsToHost,
  kAllToHost,
  kOptimizerToNvme,
  kOptimizerToNvmeWeightsToHost,
  kAllToNvme,
  kActivationsToHostToo,  // everything else on NVMe
};
inline constexpr OffloadWay kHostWays[] = {OffloadWay::kOptimizerToHost,
                                           OffloadWay::kWeightsToHostToo,
                                           OffloadWay::kActivationsToHost, OffloadWay::kAllToHost};
inline constexpr OffloadWay kNvmeWays[] = {
    OffloadWay::kOptimizerToNvme, OffloadWay::kOptimizerToNvmeWeightsToHost, OffloadWay::kAllToNvme,
    OffloadWay::kActivationsToHostToo};

// `layout` with the smallest part away that fits, in 64ths, complete; nothing when none does. On
// the ways that share states between host and NVMe the device comes first: it keeps as much as it
// has room for, weights before optimizer states, then the host, and NVMe has the rest. Classes that
// `pinned` has are where it says.
std::optional<v1::Layout> WithOffload(const MemoryEstimator& estimator, const v1::Layout& layout,
                                      const v1::Offload& pinned, OffloadWay way,
                                      const ArenaLimits& limits);

// With all away that the way moves.
v1::Offload FarthestOffload(OffloadWay way);

// What is pinned and, where a class is not, what `proposed` says.
v1::Offload WithPinned(const v1::Offload& pinned, v1::Offload proposed);

// Layers of each chunk, so that the last, with a head worth `head_layers` of them, takes no longer
// than the others.
std::vector<int64_t> BalancedLayers(int64_t chunks, int64_t layers, double head_layers);

}  // namespace terrace
