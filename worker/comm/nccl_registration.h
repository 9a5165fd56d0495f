// Lets NCCL read and write a rank's arena in place, without copies through buffers of its own.
//
// NCCL leaves to its users that members agree: an operation whose operands some members have
// registered and others not, or whose operands lie at other distances from the start of what was
// registered, goes wrong without a word. So all members register or none does, and the channel of
// collectives only takes part where all members run one program (GroupOptions.one_layout). Channels
// of messages always do: a message has one place at each end.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/nccl_connect.h"

namespace terrace {

// Called by all members, before anything of value lies in the memory: it is written to, so that
// members map each other's now and not in the first step. `group` is the one that the connection
// belongs to. Empty, or why no member of the group has registered its memory. Thread-compatible.
absl::StatusOr<std::string> RegisterMemory(const NcclMemory& memory,
                                           const NcclConnection& connection, Communicator* group);

}  // namespace terrace
