// The checker: separate, slow and obvious code that refuses a set of programs which could go wrong at run time. The
// coordinator runs it over all stages before admission; a rank runs CheckProgram over its own again before executing, and
// trusts nothing it was sent.
//
// It shares no code with the compiler: it recomputes everything from the program alone. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// INVALID_ARGUMENT with the instruction, the buffer and the rule unless, for each sequence:
//  - indices (buffers, arenas, streams, groups, waits) exist, waits point backwards, ids equal positions;
//  - buffers lie inside their arenas, 256-aligned, operands inside their buffers, arenas inside device_limit_bytes;
//  - persistent buffers overlap no other buffer; two STEP buffers of one sequence overlap only if every access to one is
//    ordered before every access to the other (streams and waits);
//  - every compute op passes the op table's shape rule, has the access the table says and the workspace it needs;
//  - every read of a STEP buffer is preceded (ordered) by writes that cover the bytes;
//  - conflicting accesses to overlapping bytes are ordered;
//  - the state manifest's ranges lie in persistent buffers and cover each tensor once;
//  - in "train": every trainable element (WEIGHT range) is updated exactly once by an optimizer op whose gradient was
//    reduced over the data-parallel group exactly once (when its instances have more than one rank), every LOAD_BATCH has
//    a different micro-batch index in [0, rules.micro_batches) and all occur.
absl::Status CheckProgram(const v1::Program& program);

// CheckProgram of each, and jointly: all members of a group issue the same collectives (kind, dtype, bytes) in the same
// order, and the joint execution with rendezvous terminates.
absl::Status CheckPrograms(absl::Span<const v1::Program> stages);

}  // namespace terrace
