// Dropout (kernels/dropout.h): a thread has the eight columns of a row that one block of random
// bits is for.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/dropout.h"

namespace terrace::kernels::cuda {
namespace {

struct DropoutArguments {
  Operand x, y;
  const uint32_t* places;  // of this rank's rows: {position, sequence}
  int64_t rows, columns, first_column;
  DropoutRule rule;
  bool accumulate;
};

__global__ void DropoutKernel(DropoutArguments a) {
  // Blocks are counted over the columns of all ranks. The first and the last may be other ranks' in
  // part.
  const int64_t first_block = a.first_column / kRoundsABlock;
  const int64_t blocks = (a.first_column + a.columns - 1) / kRoundsABlock - first_block + 1;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const uint32_t position = a.places[2 * row], sequence = a.places[2 * row + 1];
    for (int64_t i = threadIdx.x; i < blocks; i += blockDim.x) {
      const PhiloxBlock bits =
          DropoutBlock(a.rule.key, sequence, position, static_cast<uint32_t>(first_block + i));
      const int64_t begin = (first_block + i) * kRoundsABlock - a.first_column;
#pragma unroll
      for (int k = 0; k < kRoundsABlock; ++k) {
        const int64_t c = begin + k;
        if (c < 0 || c >= a.columns) continue;
        const bool stays = RoundingBitsOf(bits, k) >= a.rule.dropped_below;
        const float kept = stays ? a.x.Load(row, c) * a.rule.scale : 0.0f;
        a.y.Store(row, c, a.accumulate ? a.y.Load(row, c) + kept : kept);
      }
    }
  }
}

}  // namespace

Status Dropout(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& dropout = std::get<DropoutAttrs>(attrs);
  const TensorView& x = operands[0];
  const int64_t columns = x.size[1];
  const int64_t first_row = dropout.row_shards > 1 ? dropout.shard * x.rows() : 0;
  const DropoutArguments arguments = {
      .x = OperandOf(x),
      .y = OperandOf(operands[2]),
      .places = operands[1].as<const uint32_t>() + 2 * first_row,
      .rows = x.rows(),
      .columns = columns,
      .first_column = dropout.column_shards > 1 ? dropout.shard * columns : 0,
      .rule = RuleOf(dropout),
      .accumulate = dropout.accumulate};
  const int64_t blocks = columns / kRoundsABlock + 1;
  return Launch("dropout", DropoutKernel, RowShape(arguments.rows, blocks), context, arguments);
}

}  // namespace terrace::kernels::cuda
