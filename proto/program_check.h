// The checker: separate, slow and obvious code that refuses a set of programs which could go wrong
// at run time. The coordinator runs it over all stages before admission; a rank runs CheckProgram
// over its own again before executing, and trusts nothing it was sent.
//
// It shares no code with the compiler: it recomputes everything from the program alone. Pure and
// thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// INVALID_ARGUMENT with the instruction, the buffer and the rule unless, for each sequence:
//  - indices (buffers, arenas, streams, groups, waits) exist, ids equal positions, waits point
//    backwards and to other streams, counts are within the limits of check/structure.h;
//  - buffers lie inside their arenas, 256-aligned, operands inside their buffers, device arenas and
//    external_bytes inside device_limit_bytes;
//  - persistent buffers overlap no other buffer; two STEP buffers of one sequence overlap only if
//    every access to one is ordered before every access to the other (streams and waits);
//  - every compute op passes the op table's shape rule, has the access the table says and the
//    workspace it needs; its operands overlap only where the table allows it;
//  - every read is preceded (ordered) by writes that cover the bytes; what the state manifest or a
//    rope table holds counts as written;
//  - conflicting accesses to overlapping bytes are ordered;
//  - the collectives of a group share one stream;
//  - the state manifest's ranges lie in persistent buffers and cover each tensor once;
//  - only an optimizer op of "train" writes what the manifest holds;
//  - in "train": every trainable element (WEIGHT range) is updated exactly once, with its own
//    moments, by an optimizer op whose gradient was reduced over the group "data_parallel" exactly
//    once (when rules.data_parallel is above 1) after its last contribution; squared norms read
//    reduced gradients; every LOAD_BATCH has a different micro-batch index in [0,
//    rules.micro_batches) and all occur.
absl::Status CheckProgram(const v1::Program& program);

// CheckProgram of each, and jointly: all members of a group issue the same collectives (kind,
// dtype, bytes) in the same order, and the joint execution with rendezvous terminates.
absl::Status CheckPrograms(absl::Span<const v1::Program> stages);

}  // namespace terrace
