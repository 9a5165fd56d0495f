// Rotary position embedding, in place, forward or inverse: a block a token, a thread eight pairs.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/row_packs.cuh"

namespace terrace::kernels::cuda {
namespace {

struct RopeArguments {
  Operand x;
  const float* table;         // a row: half cosines, then half sines
  int64_t rows, heads, head;  // elements of a head
  int64_t half;               // of those that are rotated, at its begin
  Positions share;
  float sign;
  bool wide;
};

// Eight neighbouring pairs of a head, fewer at its end.
__global__ void __launch_bounds__(kElementThreads) RopeKernel(RopeArguments a) {
  const auto packs_per_head = static_cast<uint32_t>(DivideUp(a.half, kPack));
  const uint32_t packs = packs_per_head * static_cast<uint32_t>(a.heads);
  const Operand table = {const_cast<float*>(a.table), 2 * a.half, false};
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t position = a.share.Of(row);
    for (uint32_t pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      const uint32_t head = pack / packs_per_head;
      const int64_t i = int64_t{pack - head * packs_per_head} * kPack;
      const RowPart firsts = {row, head * a.head, a.half, a.wide};
      const RowPart seconds = {row, firsts.first + a.half, a.half, a.wide};
      float first[kPack], second[kPack], cosine[kPack], sine[kPack];
      LoadRowPack(a.x, firsts, i, first);
      LoadRowPack(a.x, seconds, i, second);
      LoadRowPack(table, {position, 0, a.half, a.wide}, i, cosine);
      LoadRowPack(table, {position, a.half, a.half, a.wide}, i, sine);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float x = first[k], y = second[k], s = a.sign * sine[k];
        first[k] = x * cosine[k] - y * s;
        second[k] = y * cosine[k] + x * s;
      }
      StoreRowPack(a.x, firsts, i, first);
      StoreRowPack(a.x, seconds, i, second);
    }
  }
}

}  // namespace

Status Rope(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& rope = std::get<RopeAttrs>(attrs);
  const TensorView& x = operands[0];
  const int64_t half = operands[1].size[1] / 2;
  const RopeArguments arguments = {.x = OperandOf(x),
                                   .table = operands[1].as<const float>(),
                                   .rows = x.rows(),
                                   .heads = x.size[1],
                                   .head = x.size[2],
                                   .half = half,
                                   .share = PositionsOf(rope.context, rope.sequence),
                                   .sign = rope.inverse ? -1.0f : 1.0f,
                                   .wide = half % kPack == 0 && x.size[2] % kPack == 0 &&
                                           AllowsWideRows({x}, {operands[1].as<const float>()})};
  return Launch("rope", RopeKernel,
                RowPackShape(arguments.rows, x.size[1] * DivideUp(half, kPack) * kPack), context,
                arguments);
}

}  // namespace terrace::kernels::cuda
