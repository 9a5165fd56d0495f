// Memory by layer as a picture: a bar a layer, or for layers that hold the same, with its classes
// beside each other, and a mark where the layer holds most in the whole step.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "proto/drawing/svg.h"
#include "proto/layer_memory.h"

namespace terrace {

// Of many layers that differ only the largest are drawn, in their order, and it says so.
Picture LayersChart(const LayerMemory& memory);

}  // namespace terrace
