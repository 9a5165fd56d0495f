// The checker's last part: all ranks together. Members of a group issue the same collectives in the
// same order, and the joint execution terminates when a collective blocks until all members have
// reached it (rendezvous; nothing is buffered).
//
// Programs are straight lines, so one run decides: whatever is ready runs, and what is left over
// waits for ever. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// Stage s runs on ranks [s * ranks / stages, (s + 1) * ranks / stages). REQUIRES: each program
// passed the local checks.
absl::Status CheckJoint(absl::Span<const v1::Program> stages);

// Of one program: the collectives of a group share one stream, so that every rank launches them in
// one order.
absl::Status CheckCollectiveStreams(const v1::Program& program, const v1::Sequence& sequence);

}  // namespace terrace::check
