// Writes a finished graph as a v1::Program: buffers, instructions, the state manifest and
// initializers. Offsets inside arenas are not its business (place.h). Pure and deterministic.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "coordinator/compiler/graph/graph.h"
#include "coordinator/compiler/layers/forward.h"
#include "coordinator/compiler/loops/roll.h"
#include "coordinator/compiler/state/parameters.h"
#include "proto/v1/program.pb.h"

namespace terrace::compiler {

struct EmitInput {
  const Graph* graph = nullptr;
  const Model* model = nullptr;
  const Parameters* parameters = nullptr;
  RopeTables rope_tables;
  // How the sequences that train become loops; with 0 micro-batches they stay as they are.
  RollShape roll;
};

// Adds to `program`, whose scalar fields and rules the caller sets. INTERNAL when a node breaks the
// op table's rules.
absl::Status Emit(const EmitInput& input, v1::Program* program);

}  // namespace terrace::compiler
