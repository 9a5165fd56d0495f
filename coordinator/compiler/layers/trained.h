// Where a part of the model is frozen, those operations of a recorded forward pass are
// differentiated that depend on a weight that is trained. A product whose weight is frozen passes
// gradients on; what comes before the first trained weight has no backward pass, and what only it
// needed is not kept.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "coordinator/compiler/layers/recompute.h"
#include "coordinator/compiler/state/parameters.h"

namespace terrace::compiler {

// Takes their backward rules from the nodes that need none, and sets which gradients the rules of
// products compute. `input`: of a pass whose input has a gradient, else absent.
void KeepTrainedRules(const Slice& input, const Parameters& parameters, const Graph& graph,
                      std::vector<Segment>* segments);

}  // namespace terrace::compiler
