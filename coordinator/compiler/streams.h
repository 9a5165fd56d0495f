// Assigns each node its stream and the waits that order conflicting accesses across streams:
// computation, one stream a communicator group, and host-to-device for inputs.
//
// A node waits only for what no earlier wait or its own stream already orders before it (the
// transitive reduction, found with one vector clock a node). Pure and deterministic.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/compiler/graph.h"

namespace terrace::compiler {

void AssignStreams(Graph* graph);

}  // namespace terrace::compiler
