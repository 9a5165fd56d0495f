// Matrices larger than the device should hold at once, cut into tiles: parameters of their own that
// are prefetched, multiplied and given up one after the other.
//
// A product whose outputs tensor parallelism would split (the first of a block, the LM head) is cut
// by its outputs: each tile makes columns of the result. One that it would split by its inputs is
// cut by those: tiles add up. So a block never needs a whole matrix, forward or backward.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/compiler/state/parameters.h"

namespace terrace::compiler {

// True for the matrix of a product that may be cut; tables and vectors may not.
bool IsTiled(TensorRole role);

// The parameter alone when it is no larger than `tile_bytes` or cannot be cut. Tiles are as large
// as fits, but not smaller than products are fast with, and begin on a page. REQUIRES: IsTiled of
// the parameter's first tensor, which is not split over ranks.
std::vector<Parameter> CutIntoTiles(const ModelConfig& config, const Parameter& whole,
                                    int64_t tile_bytes);

}  // namespace terrace::compiler
