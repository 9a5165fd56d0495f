// Whether a sequence can run on a GPU as one graph: captured once, launched as a whole every time
// (docs/cuda.md).
//
// A graph repeats the same kernels and copies at the same addresses. Nothing of a step is passed to
// kernels by value but what the program says: tokens, the learning rate and the step's corrections
// are inputs, copied from pinned memory, and a graph copies them anew. What a graph cannot hold is
// what a thread of the host does in the middle of a step; and it is not made of a sequence with
// loops, each iteration of which it would hold.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

// Of kind COMPUTE, HOST_TO_DEVICE or DEVICE_TO_HOST: a GPU executes the stream, not its thread.
bool RunsOnDeviceQueue(v1::StreamKind kind);

// Empty, or why not, with the first instruction that stands against it: "instruction 7 (all_reduce)
// is communication, which a thread of the host waits for". REQUIRES: CheckProgram passed.
// `captured`: whether the collectives of a group can be part of a graph, by index in
// Program.groups; those behind its end cannot.
std::string WhyNotGraphable(const v1::Program& program, const v1::Sequence& sequence,
                            const std::vector<bool>& captured = {});
bool HasCollectives(const v1::Sequence& sequence);

}  // namespace terrace
