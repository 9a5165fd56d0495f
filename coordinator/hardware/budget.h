// The part of the hardware that a job may use.
//
// Pure. Thread-compatible: plain data.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Read off the spec and, where the spec leaves it open, off the workers that are there.
struct Budget {
  uint32_t nodes = 1;
  uint32_t ranks = 1;  // on all nodes; a layout uses them all
  uint32_t threads_per_rank = 1;
  std::string device;               // as Layout.device
  int64_t device_memory_bytes = 0;  // per rank; 0: unlimited
  int64_t external_bytes = 0;       // of a rank outside its arenas, learned; 0: nothing was learned
  v1::HardwareProfile profile;
};

// A rank is given an eighth more outside its arenas than it was seen to hold there, in whole MiB.
inline constexpr int64_t kLearnedMarginParts = 8;
constexpr int64_t LearnedFrom(int64_t seen_bytes) {
  const int64_t bytes =
      seen_bytes + (seen_bytes + kLearnedMarginParts - 2) / (kLearnedMarginParts - 1);
  return (bytes + (1 << 20) - 1) >> 20 << 20;
}
// The inverse of LearnedFrom: at least the bytes that a rank was seen to hold.
constexpr int64_t SeenFrom(int64_t learned_bytes) {
  return learned_bytes - learned_bytes / kLearnedMarginParts;
}

// Of a rank's device, for its arenas: at least 1 where there is a limit, 0 where there is none.
int64_t ArenaBytesOf(const Budget& budget);

// Nodes that the pinned degrees of parallelism ask for, within resources.nodes.
uint32_t NodesFor(const v1::JobSpec& spec);

}  // namespace terrace
