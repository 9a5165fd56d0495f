// One cause for the end of a job: the first rank to fail says why in the rendezvous store, and
// those that fail for want of it repeat that instead of naming each other.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace terrace {

// What rank `rank`, which failed with `own`, reports: the cause that another rank has left when
// `own` says that a peer is lost (UNAVAILABLE), otherwise `own`, which is left for others. Takes a
// moment. Null `store`: the only rank.
absl::Status ShareCause(uint32_t rank, const absl::Status& own, RendezvousStore* store);

}  // namespace terrace
