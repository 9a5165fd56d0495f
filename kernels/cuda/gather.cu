// Copies of chosen rows.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {
namespace {

struct GatherArguments {
  Operand x, y;
  const int32_t* index;
  int64_t x_rows, y_rows, columns;
  Fault* faults;
};

// A row outside the table becomes zeros.
__global__ void GatherKernel(GatherArguments a) {
  for (int64_t row = blockIdx.x; row < a.y_rows; row += gridDim.x) {
    const int64_t from = a.index[row];
    const bool inside = from >= 0 && from < a.x_rows;
    if (!inside && threadIdx.x == 0) NoteFault(a.faults, Op::kGatherRows, row);
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
      a.y.Store(row, c, inside ? a.x.Load(from, c) : 0.0f);
    }
  }
}

}  // namespace

Status GatherRows(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  const GatherArguments arguments = {.x = OperandOf(operands[0]),
                                     .y = OperandOf(operands[2]),
                                     .index = operands[1].as<const int32_t>(),
                                     .x_rows = operands[0].rows(),
                                     .y_rows = operands[2].rows(),
                                     .columns = operands[0].RowElements(),
                                     .faults = context.faults};
  return Launch("gather_rows", GatherKernel, RowShape(arguments.y_rows, arguments.columns), context,
                arguments);
}

}  // namespace terrace::kernels::cuda
