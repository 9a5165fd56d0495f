// Gives every computation the scratch it needs: one WORKSPACE value an instruction, which the
// packer lets overlap with whatever does not live at that moment. Also decides how many rows of
// logits the LM head holds at a time.
//
// Pure and deterministic.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/compiler/graph.h"

namespace terrace::compiler {

// For CPU ranks that compute with `threads` threads.
void AddWorkspaces(int threads, Graph* graph);

}  // namespace terrace::compiler
