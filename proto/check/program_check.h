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

// INVALID_ARGUMENT with the instruction, the buffer and the rule unless:
//  - indices (buffers, arenas, streams, groups, waits) exist, ids equal positions, waits point
//    backwards and to other streams, counts are within the limits of check/structure.h; the grid
//    makes the job's ranks and stages;
//  - buffers lie inside their arenas, 256-aligned, operands inside their buffers, device arenas and
//    external_bytes inside device_limit_bytes;
//  - every op passes the op table's shape rule or that of program.proto, has the access the table
//    says and the workspace it needs; its operands overlap only where the table allows it;
//  - persistent buffers overlap no other buffer; two STEP buffers of one sequence overlap only if
//    every access to one is ordered before every access to the other (streams and waits);
//  - every read is preceded (ordered) by writes that cover the bytes; what the state manifest, a
//    rope table or "restore" holds counts as written; conflicting accesses are ordered;
//  - the collectives of a group share one stream, and so do transfers of one kind with one peer;
//  - the state manifest's ranges of all ranks of the stage cover each tensor once and share no
//  bytes;
//  - only an optimizer op of "train" writes what the manifest holds, every element once, with its
//    own moments; what else lasts is made of weights by "restore", and what "train" finds of it
//    it leaves made of the weights that it has updated;
//  - every gradient that the optimizer takes holds each micro-batch equally often, was summed over
//    exactly the ranks whose data or parts it lacks, and enters the norm once; the loss likewise;
//    every micro-batch is loaded once; what is sent is of the micro-batch it says.
//  - loops do the same in each iteration, moved on by it: all of this holds for every trip count.
absl::Status CheckProgram(const v1::Program& program);

// The part of it that whoever writes the loops of a program out (loops.h) relies on: indices exist,
// loops, slots and waits across iterations make sense, and there are not too many of anything.
absl::Status CheckCanBeWrittenOut(const v1::Program& program);

// CheckProgram of each, and jointly: stages agree on grid, groups and rules; every tensor has one
// owner, its copies' gradients are summed over the stages that hold them; every send has one
// receive of the same bytes of the same micro-batch, sums over stages bring the same; and the joint
// execution terminates when whatever communicates blocks until all its parties are there. Deadlocks
// name who waits for whom. Loops of all stages go together: as many messages and micro-batches an
// iteration.
absl::Status CheckPrograms(absl::Span<const v1::Program> stages);

}  // namespace terrace
