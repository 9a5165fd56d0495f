// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/link_time.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "proto/program/grid.h"

namespace terrace {
namespace {

struct Link {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

// The entry of the scope measured with the most members that are not more than there are; when all
// were measured with more, the smallest of these.
Link LinkOf(const v1::HardwareProfile& profile, std::string_view scope, uint64_t members) {
  const v1::LinkRate* best = nullptr;
  for (const v1::LinkRate& rate : profile.links()) {
    if (rate.scope() != scope) continue;
    const bool fits = rate.ranks() <= members;
    const bool best_fits = best != nullptr && best->ranks() <= members;
    if (best == nullptr || (fits && !best_fits) ||
        (fits == best_fits &&
         (fits ? rate.ranks() > best->ranks() : rate.ranks() < best->ranks()))) {
      best = &rate;
    }
  }
  if (best != nullptr) return {best->bytes_per_second(), best->latency_seconds()};
  return {profile.link_bytes_per_second(), profile.link_latency_seconds()};
}

double Over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

// One way round the ring. The latency of a hop is paid at every hop that the last part makes.
double RingSeconds(double whole_bytes, const Spread& spread, const v1::HardwareProfile& profile) {
  const auto members = static_cast<double>(spread.members);
  const double passing = whole_bytes * (members - 1) / members;
  const Link node = LinkOf(profile, "node", spread.in_node);
  if (spread.nodes() == 1) {
    return Over(passing, node.bytes_per_second) + (members - 1) * node.latency_seconds;
  }
  const Link network = LinkOf(profile, "network", spread.nodes());
  double rate = network.bytes_per_second * static_cast<double>(spread.in_node);
  if (spread.in_node > 1 && node.bytes_per_second > 0) rate = std::min(rate, node.bytes_per_second);
  const auto nodes = static_cast<double>(spread.nodes());
  return Over(passing, rate) + (nodes - 1) * network.latency_seconds +
         (members - nodes) * node.latency_seconds;
}

// Small sums over many nodes go up and down a tree between nodes and round a ring inside each; its
// bytes are those of the ring (NCCL's double binary trees).
double AllReduceSeconds(double whole_bytes, const Spread& spread,
                        const v1::HardwareProfile& profile) {
  const double ring = 2 * RingSeconds(whole_bytes, spread, profile);
  if (spread.nodes() == 1) return ring;
  const Link node = LinkOf(profile, "node", spread.in_node);
  const Link network = LinkOf(profile, "network", spread.nodes());
  const auto nodes = static_cast<double>(spread.nodes());
  const double hops = static_cast<double>(spread.members) - nodes;
  const double ring_latency =
      2 * ((nodes - 1) * network.latency_seconds + hops * node.latency_seconds);
  const double tree_latency = 2 * (std::ceil(std::log2(nodes)) * network.latency_seconds +
                                   static_cast<double>(spread.in_node - 1) * node.latency_seconds);
  return ring - ring_latency + std::min(ring_latency, tree_latency);
}

double AllToAllSeconds(double bytes, const Spread& spread, const v1::HardwareProfile& profile) {
  const auto members = static_cast<double>(spread.members);
  const double part = bytes / members;
  const auto near = static_cast<double>(spread.in_node - 1);
  const double far = members - 1 - near;
  const Link node = LinkOf(profile, "node", spread.in_node);
  const Link network = LinkOf(profile, "network", spread.nodes());
  return std::max(near * (Over(part, node.bytes_per_second) + node.latency_seconds),
                  far * (Over(part, network.bytes_per_second) + network.latency_seconds));
}

// True when some rank of this stage and its peer stand on different nodes.
bool Crosses(const v1::Grid& grid, uint32_t stage, uint32_t peer, uint32_t ranks_per_node) {
  if (ranks_per_node == 0) return false;
  const uint64_t ranks = RanksOf(grid) / AxisSize(grid, v1::PIPELINE);
  const uint64_t first = std::min(stage, peer) * ranks, second = std::max(stage, peer) * ranks;
  if (second - first >= ranks_per_node) return true;
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    if ((first + rank) / ranks_per_node != (second + rank) / ranks_per_node) return true;
  }
  return false;
}

}  // namespace

Spread SpreadOf(uint64_t members, uint64_t stride, uint32_t ranks_per_node) {
  if (ranks_per_node == 0) return {.members = members, .in_node = members};
  const uint64_t near = std::max<uint64_t>(1, ranks_per_node / std::max<uint64_t>(1, stride));
  return {.members = members, .in_node = std::min(members, near)};
}

Spread SpreadOf(const v1::Grid& grid, const v1::Group& group, uint32_t ranks_per_node) {
  Spread spread;
  uint64_t stride = 1;
  for (const v1::Axis axis :
       {v1::TENSOR, v1::CONTEXT, v1::DATA_SHARD, v1::DATA_REPLICA, v1::PIPELINE}) {
    const bool apart = axis == v1::DATA_SHARD && HasAxis(group, axis) && group.shard_stride() > 0;
    const Spread one = SpreadOf(MembersOn(grid, group, axis),
                                apart ? stride * group.shard_stride() : stride, ranks_per_node);
    spread.members *= one.members;
    spread.in_node *= one.in_node;
    stride *= AxisSize(grid, axis);
  }
  return spread;
}

double CollectiveSeconds(v1::CollectiveKind kind, double whole_bytes, const Spread& spread,
                         const v1::HardwareProfile& profile) {
  if (spread.members <= 1) return 0;
  switch (kind) {
    case v1::ALL_REDUCE:
      return AllReduceSeconds(whole_bytes, spread, profile);
    case v1::ALL_TO_ALL:
      return AllToAllSeconds(whole_bytes, spread, profile);
    case v1::RING_SHIFT:
      return TransferSeconds(whole_bytes, spread.nodes() == 1, profile);
    default:
      return RingSeconds(whole_bytes, spread, profile);
  }
}

double TransferSeconds(double bytes, bool same_node, const v1::HardwareProfile& profile) {
  const Link link = LinkOf(profile, same_node ? "node" : "network", 2);
  return Over(bytes, link.bytes_per_second) + link.latency_seconds;
}

absl::StatusOr<double> CommunicationSeconds(const v1::Program& program,
                                            const v1::Instruction& instruction, double bytes,
                                            const v1::HardwareProfile& profile) {
  const bool collective = instruction.has_collective();
  if (!collective && !instruction.has_transfer()) {
    return absl::InvalidArgumentError("the instruction does not communicate");
  }
  if (!collective) {
    const bool crosses = Crosses(program.grid(), program.stage(),
                                 instruction.transfer().peer_stage(), profile.ranks_per_node());
    return TransferSeconds(bytes, !crosses, profile);
  }
  const v1::CollectiveOp& op = instruction.collective();
  if (op.group() >= static_cast<uint32_t>(program.groups_size())) {
    return absl::InvalidArgumentError("the collective's group does not exist");
  }
  const Spread spread = SpreadOf(program.grid(), program.groups(static_cast<int>(op.group())),
                                 profile.ranks_per_node());
  return CollectiveSeconds(op.kind(), bytes, spread, profile);
}

double ContendedShare(const v1::Program& program, const v1::Instruction& instruction, double bytes,
                      double seconds, const v1::HardwareProfile& profile) {
  if (seconds <= 0) return 0;
  double passing = bytes;
  if (instruction.has_collective() && instruction.collective().kind() != v1::RING_SHIFT) {
    const v1::CollectiveOp& op = instruction.collective();
    const v1::Group& group = program.groups(static_cast<int>(op.group()));
    const auto members =
        static_cast<double>(SpreadOf(program.grid(), group, profile.ranks_per_node()).members);
    passing *= (op.kind() == v1::ALL_REDUCE ? 2 : 1) * (members - 1) / members;
  }
  return std::min(1.0, Over(passing, LinkOf(profile, "node", 2).bytes_per_second) / seconds);
}

}  // namespace terrace
