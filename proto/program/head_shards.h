// Which heads of attention a rank has. Tensor-parallel ranks share the heads; where attention is
// over whole sequences, the ranks of a context share those of a tensor-parallel rank (Ulysses).
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/op.h"
#include "proto/program/grid.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Fills in the first head of attention whose queries have `heads` heads on each rank, beside what
// ResolveRank (op_codec.h) does. Other attributes stay as they are.
void ResolveHeads(const v1::Grid& grid, const Coordinates& rank, int64_t heads,
                  kernels::OpAttrs* attrs);
// Whether the heads that slopes follow from are those of all ranks with so many each.
bool HasAllHeads(const v1::Grid& grid, int64_t heads, kernels::OpAttrs attrs);

}  // namespace terrace
