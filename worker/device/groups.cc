// SPDX-License-Identifier: Apache-2.0
#include "worker/device/groups.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/program/grid.h"

namespace terrace {
namespace {

// Members of group `index` that this rank sends to or receives from.
std::vector<int> MessagePeers(const v1::Program& program, int index, uint32_t rank) {
  std::set<int> peers;
  for (const v1::Sequence& sequence : program.sequences()) {
    for (const v1::Instruction& instruction : sequence.instructions()) {
      if (!instruction.has_transfer() || instruction.transfer().group() != uint32_t(index))
        continue;
      const int peer =
          MemberOfStage(program, program.groups(index), rank, instruction.transfer().peer_stage());
      if (peer >= 0) peers.insert(peer);
    }
  }
  return {peers.begin(), peers.end()};
}

}  // namespace

int MemberOfStage(const v1::Program& program, const v1::Group& group, uint32_t rank,
                  uint32_t stage) {
  Coordinates peer = CoordinatesOf(program.grid(), rank);
  if (stage == peer.stage || stage >= AxisSize(program.grid(), v1::PIPELINE)) return -1;
  peer.stage = stage;
  const std::vector<uint32_t> members = GroupMembers(program.grid(), group, rank);
  const auto found = std::find(members.begin(), members.end(), RankOf(program.grid(), peer));
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

std::optional<GroupOptions> OptionsOf(const v1::Program& program, int group, uint32_t rank,
                                      const GroupOptions& common) {
  GroupOptions options = common;
  options.ranks = GroupMembers(program.grid(), program.groups(group), rank);
  if (options.ranks.empty()) return std::nullopt;
  // Every instance has a name of its own: that of its first member.
  options.name = absl::StrCat(program.groups(group).name(), ".", options.ranks.front());
  options.size = static_cast<int>(options.ranks.size());
  const auto own = std::find(options.ranks.begin(), options.ranks.end(), rank);
  options.rank = static_cast<int>(own - options.ranks.begin());
  options.message_peers = MessagePeers(program, group, rank);
  const uint32_t stage = CoordinatesOf(program.grid(), rank).stage;
  options.one_layout = std::all_of(
      options.ranks.begin(), options.ranks.end(),
      [&](uint32_t member) { return CoordinatesOf(program.grid(), member).stage == stage; });
  return options;
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> ConnectGroups(const v1::Program& program,
                                                                         uint32_t rank,
                                                                         const GroupOptions& common,
                                                                         RendezvousStore* store,
                                                                         Backend* backend) {
  const std::unique_ptr<Backend> cpu = MakeCpuBackend();
  if (backend == nullptr) backend = cpu.get();
  std::vector<std::unique_ptr<Communicator>> groups;
  for (int i = 0; i < program.groups_size(); ++i) {
    std::unique_ptr<Communicator>& connection = groups.emplace_back();
    const std::optional<GroupOptions> options = OptionsOf(program, i, rank, common);
    if (!options.has_value()) continue;
    ASSIGN_OR_RETURN(connection, backend->Connect(*options, store));
  }
  return groups;
}

}  // namespace terrace
