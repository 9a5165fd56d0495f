// Rotary position embedding, in place, forward or inverse: a block a token, a thread a pair.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.h"

namespace terrace::kernels::cuda {
namespace {

struct RopeArguments {
  Operand x;
  const float* table;  // a row: half cosines, then half sines
  int64_t rows, heads, half;
  Positions share;
  float sign;
};

__global__ void RopeKernel(RopeArguments a) {
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float* angles = a.table + a.share.Of(row) * 2 * a.half;
    for (int64_t p = threadIdx.x; p < a.heads * a.half; p += blockDim.x) {
      const int64_t head = p / a.half, i = p % a.half;
      const int64_t column = head * 2 * a.half + i;
      const float cosine = angles[i], sine = a.sign * angles[a.half + i];
      const float first = a.x.Load(row, column), second = a.x.Load(row, column + a.half);
      a.x.Store(row, column, first * cosine - second * sine);
      a.x.Store(row, column + a.half, second * cosine + first * sine);
    }
  }
}

}  // namespace

Status Rope(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& rope = std::get<RopeAttrs>(attrs);
  const TensorView& x = operands[0];
  const RopeArguments arguments = {.x = OperandOf(x),
                                   .table = operands[1].as<const float>(),
                                   .rows = x.rows(),
                                   .heads = x.size[1],
                                   .half = x.size[2] / 2,
                                   .share = PositionsOf(rope.context, rope.sequence),
                                   .sign = rope.inverse ? -1.0f : 1.0f};
  return Launch("rope", RopeKernel, RowShape(arguments.rows, arguments.heads * arguments.half),
                context, arguments);
}

}  // namespace terrace::kernels::cuda
