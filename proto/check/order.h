// The checker's third part: whoever may run at the same time (proto/program/happens_before.h)
// touches the same bytes only to read them, and reads what was written.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/check/instruction/instructions.h"
#include "proto/program/happens_before.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// Refuses two accesses to the same bytes of one buffer, one of them a write, that are not ordered.
absl::Status CheckConflicts(const v1::Program& program, const CheckedSequence& sequence,
                            const HappensBefore& order);

// Refuses two buffers that share bytes of an arena unless all accesses to one are ordered before
// all to the other; persistent buffers share with nobody. All sequences.
absl::Status CheckPersistentSpace(const v1::Program& program);
absl::Status CheckSharedSpace(const v1::Program& program, const CheckedSequence& sequence,
                              const HappensBefore& order);

// Refuses a read of bytes that nothing has written: earlier in the sequence or, of a persistent
// buffer, its state, its rope table or "restore" (lasting.h asks what "train" leaves there). What
// is kept of texts counts as written: attention_cached alone touches it, and never in training.
// REQUIRES: CheckConflicts passed (then an earlier write is an ordered one).
absl::Status CheckReads(const v1::Program& program, const std::vector<CheckedSequence>& sequences);

}  // namespace terrace::check
