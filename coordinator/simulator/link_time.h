// How long collectives and transfers take alone, by where their members stand.
//
// Ranks with consecutive numbers share a node (HardwareProfile.ranks_per_node), inside which they
// meet over the link of scope "node"; between nodes each rank has a network link of its own, scope
// "network". A ring over several nodes enters and leaves each node as often as it has members
// there, over different network links (NCCL's rings and channels), so that a member sees the
// smaller of the node's link and its share of the node's network links.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// How the members of a group spread over nodes.
struct Spread {
  uint64_t members = 1;
  uint64_t in_node = 1;  // members on one node; = members: on one node all
  uint64_t nodes() const { return (members + in_node - 1) / in_node; }
};
// `ranks_per_node` 0: one node has all ranks.
Spread SpreadOf(const v1::Grid& grid, const v1::Group& group, uint32_t ranks_per_node);
// Of ranks whose numbers are `stride` apart.
Spread SpreadOf(uint64_t members, uint64_t stride, uint32_t ranks_per_node);

// Where the profile has no link of a scope, its link_bytes_per_second and link_latency_seconds
// hold; a rate of 0 takes no time. `whole_bytes`: what the group works on as a whole, the larger
// operand of the collective; of ALL_TO_ALL and RING_SHIFT what one member sends.
double CollectiveSeconds(v1::CollectiveKind kind, double whole_bytes, const Spread& spread,
                         const v1::HardwareProfile& profile);
double TransferSeconds(double bytes, bool same_node, const v1::HardwareProfile& profile);

// What one instruction that communicates takes alone.
// `bytes` of a collective is whole_bytes above; of a transfer the message. INVALID_ARGUMENT when
// the instruction is neither or its group does not exist.
absl::StatusOr<double> CommunicationSeconds(const v1::Program& program,
                                            const v1::Instruction& instruction, double bytes,
                                            const v1::HardwareProfile& profile);
// Of those seconds, what the same bytes take over the node's link: for that long it is in the way
// of computation (calibration.h). 0 to 1. REQUIRES: CommunicationSeconds gave `seconds`.
double ContendedShare(const v1::Program& program, const v1::Instruction& instruction, double bytes,
                      double seconds, const v1::HardwareProfile& profile);

}  // namespace terrace
