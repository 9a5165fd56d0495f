// The workspace of kUpdateMatrix on a CPU rank has the matrix u of OptimizerRule::kMuon and its
// successor in the iteration, the two square matrices between them, and the scratch of sums and
// products.
//
// Read by kernels/op_cost.cc (how large) and kernels/cpu/update_matrix.cc (where). Thread-safe: no
// state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gemm_workspace.h"
#include "kernels/op.h"
#include "kernels/row_blocks.h"

namespace terrace::kernels {

// Products with X X' from the left or, where columns are fewer, with X' X from the right.
struct NewtonSchulzShape {
  int64_t rows = 0, columns = 0;

  bool from_left() const { return rows <= columns; }
  int64_t side() const { return std::min(rows, columns); }
  int64_t longer() const { return std::max(rows, columns); }
  // An iteration has three products: the square, its square, and that times the matrix.
  int64_t Flops() const { return 2 * side() * side() * (2 * longer() + side()); }
};

struct NewtonSchulzScratch {
  static constexpr int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  NewtonSchulzScratch(const NewtonSchulzShape& shape, MatmulPrecision precision, int threads)
      : matrix_bytes(RoundUp(shape.rows * shape.columns * int64_t{sizeof(float)})),
        square_bytes(RoundUp(shape.side() * shape.side() * int64_t{sizeof(float)})),
        sums_bytes(RoundUp(SumBlocks(shape.rows * shape.columns) * int64_t{sizeof(double)})) {
    const int64_t side = shape.side();
    work_bytes =
        std::max({sums_bytes, GemmWorkspaceBytes(side, side, shape.longer(), precision, threads),
                  GemmWorkspaceBytes(side, side, side, precision, threads),
                  GemmWorkspaceBytes(shape.rows, shape.columns, side, precision, threads)});
    bytes = 2 * matrix_bytes + 2 * square_bytes + work_bytes;
  }

  int64_t matrix_bytes = 0;
  int64_t square_bytes = 0;
  int64_t sums_bytes = 0;
  int64_t work_bytes = 0;  // of sums and products, one after the other
  int64_t bytes = 0;
};

}  // namespace terrace::kernels
