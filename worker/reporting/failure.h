// A failure of a rank: a status that also carries the reason from the jobs' fixed vocabulary, so
// that it travels through RETURN_IF_ERROR to the report. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/v1/job.pb.h"
#include "worker/comm/communicator.h"

namespace terrace {

// `status` with `reason` attached, unless it has one. An OK status stays as it is.
absl::Status WithReason(absl::Status status, v1::Reason reason);
// The attached reason. Without one: REASON_RANK_DIED for UNAVAILABLE (a peer is lost),
// REASON_INTERNAL otherwise.
v1::Reason ReasonOf(const absl::Status& status);

// What this rank's drive said, as a failure of the rank: REASON_RANK_DIED, because the job may go
// on from its checkpoint, here or elsewhere. Never UNAVAILABLE, which is a lost peer everywhere in
// a rank. INTERNAL, a fault of ours, keeps that reason.
absl::Status OfDrive(const absl::Status& status);

// One cause for the end of a job: the first rank to fail says why in the rendezvous store, and
// those that fail for want of it repeat that instead of naming each other.
//
// What rank `rank`, which failed with `own`, reports: the cause that another rank has left when
// `own` says that a peer is lost (UNAVAILABLE), otherwise `own`, which is left for others. Takes a
// moment. Null `store`: the only rank.
absl::Status ShareCause(uint32_t rank, const absl::Status& own, RendezvousStore* store);

}  // namespace terrace
