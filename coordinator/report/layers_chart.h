// Memory by layer as a picture: a bar a layer, or for layers that hold the same, with its classes
// beside each other, and a mark where the layer holds most in the whole step.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "proto/drawing/svg.h"
#include "proto/report/layer_memory.h"

namespace terrace {

// Draws the largest ones of many layers that differ, in their order, and says in the picture that
// there are more.
Picture LayersChart(const LayerMemory& memory);

}  // namespace terrace
