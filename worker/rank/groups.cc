// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/groups.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/grid.h"

namespace terrace {

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> ConnectGroups(const v1::Program& program,
                                                                         uint32_t rank,
                                                                         const GroupOptions& common,
                                                                         RendezvousStore* store) {
  std::vector<std::unique_ptr<Communicator>> groups;
  for (const v1::Group& group : program.groups()) {
    std::unique_ptr<Communicator>& connection = groups.emplace_back();
    GroupOptions options = common;
    options.ranks = GroupMembers(program.grid(), group, rank);
    if (options.ranks.empty()) continue;
    // Every instance has a name of its own: that of its first member.
    options.name = absl::StrCat(group.name(), ".", options.ranks.front());
    options.size = static_cast<int>(options.ranks.size());
    const auto own = std::find(options.ranks.begin(), options.ranks.end(), rank);
    options.rank = static_cast<int>(own - options.ranks.begin());
    ASSIGN_OR_RETURN(connection, ConnectGloo(options, store));
  }
  return groups;
}

}  // namespace terrace
