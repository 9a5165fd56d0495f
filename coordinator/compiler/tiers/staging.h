// Gives the host buffers that copies pass through their memory: a few buffers a ring, taken in
// turn.
//
// Each piece of a copy has a staging value of its own when it is appended. Here, once the order of
// the sequence is final, it gets the buffer of its ring that has been free for longest. That the
// next piece must not overwrite what the last one still holds is then an ordinary conflict, which
// becomes a wait (streams.h): a stream runs ahead by as many pieces as there are buffers.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/compiler/graph/graph.h"

namespace terrace::compiler {

// Buffers of a ring, where it has so many pieces.
inline constexpr int kRingBuffers = 4;

void AssignStaging(int sequence, Graph* graph);

}  // namespace terrace::compiler
