// Formats in blocks (block_codes.h): a warp takes 256 elements, a pack a lane; the lanes of a block
// agree on its scale.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <variant>

#include "kernels/block_codes.h"
#include "kernels/cuda/code_packs.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernels.h"

namespace terrace::kernels::cuda {
namespace {

struct BlockArguments {
  Operand elements;
  uint8_t* codes;
  float* scales;
  int64_t count;
  int64_t block;
  bool wide;
};

template <Format kFormat>
__global__ void __launch_bounds__(kElementThreads) EncodeKernel(BlockArguments a) {
  const int lanes = static_cast<int>(a.block / kPack);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kPack;
  const int64_t end = DivideUp(a.count, kWarpElements) * kWarpElements;  // for all lanes of a warp
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
       first < end; first += step) {
    const int count = ElementsOfPack(first, a.count);
    const bool wide = a.wide && count == kPack;
    float x[kPack] = {};
    if (wide) {
      LoadPack(a.elements, first, x);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (i < count) x[i] = a.elements.Load(0, first + i);
      }
    }
    const BlockScale scale = ScaleOfBlock(LargestOfLanes(x, lanes), kFormat);
    if (count == 0) continue;
    if (first % a.block == 0) a.scales[first / a.block] = scale.scale;
    CodePack pack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.codes[i] = BlockCode(x[i] * scale.inverse, kFormat);
    StoreCodes(pack, a.codes + first, count, wide);
  }
}

template <Format kFormat>
__global__ void __launch_bounds__(kElementThreads) DecodeKernel(BlockArguments a) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kPack;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
       first < a.count; first += step) {
    const int count = ElementsOfPack(first, a.count);
    const bool wide = a.wide && count == kPack;
    const CodePack pack = LoadCodes(a.codes + first, count, wide);
    const float scale = a.scales[first / a.block];
    float y[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = BlockNumber(pack.codes[i], kFormat) * scale;
    if (wide) {
      StorePack(a.elements, first, y);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (i < count) a.elements.Store(0, first + i, y[i]);
    }
  }
}

struct Parts {
  int64_t count;
  int64_t code_stride;
  int64_t scale_stride;
};

template <Format kFormat>
__global__ void __launch_bounds__(kElementThreads) SumKernel(BlockArguments a, Parts parts) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kPack;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
       first < a.count; first += step) {
    const int count = ElementsOfPack(first, a.count);
    const bool wide = a.wide && count == kPack;
    float y[kPack] = {};
    for (int64_t p = 0; p < parts.count; ++p) {
      const CodePack pack = LoadCodes(a.codes + p * parts.code_stride + first, count, wide);
      const float scale = a.scales[p * parts.scale_stride + first / a.block];
#pragma unroll
      for (int i = 0; i < kPack; ++i) y[i] += BlockNumber(pack.codes[i], kFormat) * scale;
    }
    if (wide) {
      StorePack(a.elements, first, y);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (i < count) a.elements.Store(0, first + i, y[i]);
    }
  }
}

BlockArguments ArgumentsOf(const BlockAttrs& attrs, const TensorView& elements,
                           const TensorView& codes, const TensorView& scales) {
  return {.elements = OperandOf(elements),
          .codes = codes.as<uint8_t>(),
          .scales = scales.as<float>(),
          .count = elements.Elements(),
          .block = attrs.block,
          .wide = AllowsWide(elements, true) && AllowsWide(codes, true)};
}

}  // namespace

Status EncodeBlocks(const OpAttrs& attrs, std::span<const TensorView> operands,
                    const Context& context) {
  const auto& blocks = std::get<BlockAttrs>(attrs);
  const auto kernel = blocks.format == Format::kFP8 ? EncodeKernel<Format::kFP8>
                                                    : EncodeKernel<Format::kInt8Linear>;
  return Launch("encode_blocks", kernel, ElementShape(1, operands[0].Elements()), context,
                ArgumentsOf(blocks, operands[0], operands[1], operands[2]));
}

Status DecodeBlocks(const OpAttrs& attrs, std::span<const TensorView> operands,
                    const Context& context) {
  const auto& blocks = std::get<BlockAttrs>(attrs);
  const auto kernel = blocks.format == Format::kFP8 ? DecodeKernel<Format::kFP8>
                                                    : DecodeKernel<Format::kInt8Linear>;
  return Launch("decode_blocks", kernel, ElementShape(1, operands[2].Elements()), context,
                ArgumentsOf(blocks, operands[2], operands[0], operands[1]));
}

// Parts of which not all begin on a pack are read by single codes.
Status SumCodes(const OpAttrs& attrs, std::span<const TensorView> operands,
                const Context& context) {
  const auto& blocks = std::get<BlockAttrs>(attrs);
  const TensorView &codes = operands[0], &scales = operands[1];
  const auto kernel =
      blocks.format == Format::kFP8 ? SumKernel<Format::kFP8> : SumKernel<Format::kInt8Linear>;
  BlockArguments arguments = ArgumentsOf(blocks, operands[2], codes, scales);
  arguments.wide = arguments.wide && codes.size[1] % kPack == 0;
  const Parts parts = {
      .count = codes.size[0], .code_stride = codes.size[1], .scale_stride = scales.size[1]};
  return Launch("sum_blocks", kernel, ElementShape(1, arguments.count), context, arguments, parts);
}

}  // namespace terrace::kernels::cuda
