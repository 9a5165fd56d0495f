// Gives every computation the scratch it needs: one WORKSPACE value an instruction, which the
// packer lets overlap with whatever does not live at that moment. Also decides how many rows of
// logits the LM head holds at a time.
//
// Pure and deterministic.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "coordinator/compiler/graph/graph.h"

namespace terrace::compiler {

// For ranks with devices of this kind (Program.device) that compute with `threads` threads on the
// host.
void AddWorkspaces(int threads, Graph* graph, std::string_view device = "");

}  // namespace terrace::compiler
