// Which library carries a group's bytes: one rule, the same on all members.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace terrace {

enum class Transport {
  kGloo,        // host memory: all members run on CPUs
  kStagedGloo,  // StageThroughHost over Gloo: a member shares its GPU with another rank of the job
  kNccl,        // each member has a GPU of its own
};

// The device of one rank: the UUID of its GPU, which no other GPU has; empty for a CPU.
using RankDevice = std::string;

// `devices`: of all ranks of the job; `members`: the group's ranks. A GPU that ranks of two groups
// share counts as shared: the kernels of NCCL wait for each other and would spend the time slices
// of the other rank waiting. Thread-safe: no state. REQUIRES: members are indices of devices.
Transport TransportOf(std::span<const RankDevice> devices, std::span<const uint32_t> members);

// Tells the other ranks of the job this one's device and learns theirs, by rank. DEADLINE_EXCEEDED
// names the first rank that is missing after timeout_ms.
absl::StatusOr<std::vector<RankDevice>> ExchangeDevices(uint32_t rank, uint32_t ranks,
                                                        const RankDevice& own,
                                                        RendezvousStore* store, int64_t timeout_ms);

}  // namespace terrace
