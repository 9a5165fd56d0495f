// The groups of a program, connected for one rank.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"
#include "worker/comm/communicator.h"
#include "worker/device/backend.h"

namespace terrace {

// How the rank's instance of program.groups[group] is connected; nothing where it is in none.
// `common` as below.
std::optional<GroupOptions> OptionsOf(const v1::Program& program, int group, uint32_t rank,
                                      const GroupOptions& common);

// By index in program.groups; null where the rank is in no instance of the group. `common` holds
// what is the same for all (address, timeout, link). All ranks of the job call this, and connect in
// the same order. Null `backend`: the CPU. REQUIRES: rank < RanksOf(program.grid).
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> ConnectGroups(
    const v1::Program& program, uint32_t rank, const GroupOptions& common, RendezvousStore* store,
    Backend* backend = nullptr);

// The member of the group that stands in `stage` where `rank` stands in its own; -1 when there is
// none but that rank.
int MemberOfStage(const v1::Program& program, const v1::Group& group, uint32_t rank,
                  uint32_t stage);

}  // namespace terrace
