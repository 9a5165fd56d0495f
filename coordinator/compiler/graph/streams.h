// Assigns each node its stream and the waits that order conflicting accesses across streams:
// computation, host-to-device for inputs, one stream a communicator group, one a direction and peer
// of pipeline transfers, one a direction of copies between tiers, and one for computation on the
// host.
//
// Two more waits keep memory from being held for ever by streams that know nothing of each other
// (liveness.h shares bytes only where an order is known):
//  - what arrives in new memory starts no earlier than the computation that stands before it in the
//    list, so that it may take over memory that was free by then; a buffer of a ring (staging.h) is
//    new memory at its first use;
//  - when nothing reads a value after a collective or a send, some computation a while later waits
//    for that: two layers later for a collective; for a send the pass that makes the
//    next message but one to the same stage (SendsRetire in schedule.h); for a copy to the host the
//    first computation of the value that leaves next but one: two are on their way at a time. Of
//    gradients that a run of micro-batches has completed together it is the run after the next one.
//
// A node waits only for what no earlier wait or its own stream already orders before it (the
// transitive reduction, found with one vector clock a node). Pure and deterministic.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/compiler/graph/graph.h"

namespace terrace::compiler {

void AssignStreams(Graph* graph);

}  // namespace terrace::compiler
