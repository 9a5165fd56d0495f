// The second half of sums down columns, and the gradient of a bias, which is nothing else.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/kernels.h"

namespace terrace::kernels::cuda {
namespace {

struct FinishArguments {
  PartialColumns parts;
  float* out[kMaxColumnSums];
  int count;
  bool accumulate;
};

__global__ void __launch_bounds__(kElementThreads) FinishKernel(FinishArguments a) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       column < a.parts.columns; column += stride) {
    for (int s = 0; s < a.count; ++s) {
      if (a.out[s] == nullptr) continue;
      float total = a.parts.At(s, 0)[column];
#pragma unroll 16
      for (int64_t block = 1; block < a.parts.blocks; ++block) {
        total += a.parts.At(s, block)[column];
      }
      a.out[s][column] = a.accumulate ? a.out[s][column] + total : total;
    }
  }
}

struct BiasTerm {
  static constexpr int kSums = 1;
  Operand dy;
  int64_t columns;
  bool wide;
  __device__ void Terms(int64_t row, int64_t column, float (*terms)[kPack]) const {
    LoadRowPack(dy, {row, 0, columns, wide}, column, terms[0]);
  }
};

}  // namespace

Status FinishColumnSums(const char* what, const PartialColumns& parts, const ColumnSums& sums,
                        int count, const Context& context) {
  const FinishArguments arguments = {.parts = parts,
                                     .out = {sums.out[0], sums.out[1]},
                                     .count = count,
                                     .accumulate = sums.accumulate};
  // A thread a column.
  return Launch(what, FinishKernel, ElementShape(1, sums.columns * kPack), context, arguments);
}

Status BiasGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                const Context& context) {
  const TensorView& dy = operands[0];
  const ColumnSums sums = {.rows = dy.rows(),
                           .columns = dy.size[1],
                           .out = {operands[1].as<float>()},
                           .accumulate = std::get<AccumulateAttrs>(attrs).accumulate};
  return LaunchColumnSums("bias_grad", sums,
                          BiasTerm{OperandOf(dy), sums.columns, AllowsWideRows({dy}, {})}, context);
}

}  // namespace terrace::kernels::cuda
