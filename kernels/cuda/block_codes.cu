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
  int64_t runs = 1, parts = 1;
  Operand residual = {};  // of EncodeKernel with kKeeps
};

template <Format kFormat>
inline constexpr bool kInHalves = RowOf(kFormat).packed == 2;

// Eight codes of 4 bits are four bytes.
__device__ CodePack LoadHalves(const uint8_t* from, int count, bool wide) {
  uint32_t bytes = 0;
  if (wide) {
    bytes = *reinterpret_cast<const uint32_t*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < kPack / 2; ++i) {
      if (2 * i < count) bytes |= static_cast<uint32_t>(from[i]) << 8 * i;
    }
  }
  CodePack pack;
#pragma unroll
  for (int i = 0; i < kPack; ++i) pack.codes[i] = static_cast<uint8_t>(bytes >> 4 * i & 0xf);
  return pack;
}

__device__ void StoreHalves(const CodePack& pack, uint8_t* to, int count, bool wide) {
  uint32_t bytes = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) bytes |= static_cast<uint32_t>(pack.codes[i]) << 4 * i;
  if (wide) {
    *reinterpret_cast<uint32_t*>(to) = bytes;
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack / 2; ++i) {
    if (2 * i < count) to[i] = static_cast<uint8_t>(bytes >> 8 * i);
  }
}

// The codes of elements from `first` on.
template <Format kFormat>
__device__ CodePack LoadBlockCodes(const uint8_t* codes, int64_t first, int count, bool wide) {
  if constexpr (kInHalves<kFormat>) {
    return LoadHalves(codes + first / 2, count, wide);
  } else {
    return LoadCodes(codes + first, count, wide);
  }
}

template <Format kFormat>
__device__ void StoreBlockCodes(const CodePack& pack, uint8_t* codes, int64_t first, int count,
                                bool wide) {
  if constexpr (kInHalves<kFormat>) {
    StoreHalves(pack, codes + first / 2, count, wide);
  } else {
    StoreCodes(pack, codes + first, count, wide);
  }
}

__device__ void LoadElements(const Operand& from, int64_t first, int count, bool wide,
                             float (&x)[kPack]) {
  if (wide) {
    LoadPack(from, first, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    if (i < count) x[i] = from.Load(0, first + i);
  }
}

__device__ void StoreElements(const Operand& to, int64_t first, int count, bool wide,
                              const float (&y)[kPack]) {
  if (wide) {
    StorePack(to, first, y);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    if (i < count) to.Store(0, first + i, y[i]);
  }
}

// With kKeeps what the codes are not worth is kept (kEncodeBlocks in op.h).
template <Format kFormat, bool kKeeps>
__global__ void __launch_bounds__(kElementThreads) EncodeKernel(BlockArguments a) {
  const int lanes = static_cast<int>(a.block / kPack);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kPack;
  const int64_t end = DivideUp(a.count, kWarpElements) * kWarpElements;  // for all lanes of a warp
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
       first < end; first += step) {
    const int count = ElementsOfPack(first, a.count);
    const bool wide = a.wide && count == kPack;
    float x[kPack] = {};
    LoadElements(a.elements, first, count, wide, x);
    float residual[kPack] = {};
    if constexpr (kKeeps) {
      LoadElements(a.residual, first, count, wide, residual);
#pragma unroll
      for (int i = 0; i < kPack; ++i) x[i] += residual[i];
    }
    const BlockScale scale = ScaleOfBlock(LargestOfLanes(x, lanes), kFormat);
    if (count == 0) continue;
    const int64_t blocks = DivideUp(a.count, a.block);
    const int64_t place = PlaceInParts(first / a.block, blocks, a.runs, a.parts);
    if (first % a.block == 0) a.scales[place] = scale.scale;
    CodePack pack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.codes[i] = BlockCode(x[i] * scale.inverse, kFormat);
    StoreBlockCodes<kFormat>(pack, a.codes, place * a.block + first % a.block, count, wide);
    if constexpr (kKeeps) {
      const bool finite = isfinite(scale.scale);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float lost = x[i] - BlockNumber(pack.codes[i], kFormat) * scale.scale;
        residual[i] = finite ? KeptResidual(residual[i], lost) : 0;
      }
      StoreElements(a.residual, first, count, wide, residual);
    }
  }
}

template <Format kFormat>
__global__ void __launch_bounds__(kElementThreads) DecodeKernel(BlockArguments a) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kPack;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
       first < a.count; first += step) {
    const int count = ElementsOfPack(first, a.count);
    const bool wide = a.wide && count == kPack;
    const CodePack pack = LoadBlockCodes<kFormat>(a.codes, first, count, wide);
    const float scale = a.scales[first / a.block];
    float y[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = BlockNumber(pack.codes[i], kFormat) * scale;
    StoreElements(a.elements, first, count, wide, y);
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
      const CodePack pack =
          LoadBlockCodes<kFormat>(a.codes + p * parts.code_stride, first, count, wide);
      const float scale = a.scales[p * parts.scale_stride + first / a.block];
#pragma unroll
      for (int i = 0; i < kPack; ++i) y[i] += BlockNumber(pack.codes[i], kFormat) * scale;
    }
    StoreElements(a.elements, first, count, wide, y);
  }
}

BlockArguments ArgumentsOf(const BlockAttrs& attrs, const TensorView& elements,
                           const TensorView& codes, const TensorView& scales) {
  return {.elements = OperandOf(elements),
          .codes = codes.as<uint8_t>(),
          .scales = scales.as<float>(),
          .count = elements.Elements(),
          .block = attrs.block,
          .wide = AllowsWide(elements, true) && AllowsWide(codes, true),
          .runs = attrs.runs,
          .parts = attrs.parts};
}

template <bool kKeeps>
auto* EncodeKernelOf(Format format) {
  return format == Format::kFP8          ? EncodeKernel<Format::kFP8, kKeeps>
         : format == Format::kInt4Linear ? EncodeKernel<Format::kInt4Linear, kKeeps>
         : format == Format::kNF4        ? EncodeKernel<Format::kNF4, kKeeps>
                                         : EncodeKernel<Format::kInt8Linear, kKeeps>;
}

}  // namespace

Status EncodeBlocks(const OpAttrs& attrs, std::span<const TensorView> operands,
                    const Context& context) {
  const auto& blocks = std::get<BlockAttrs>(attrs);
  const TensorView& residual = operands[3];
  BlockArguments arguments = ArgumentsOf(blocks, operands[0], operands[1], operands[2]);
  const bool keeps = !residual.absent();
  if (keeps) {
    arguments.residual = OperandOf(residual);
    arguments.wide = arguments.wide && AllowsWide(residual, true);
  }
  return Launch("encode_blocks",
                keeps ? EncodeKernelOf<true>(blocks.format) : EncodeKernelOf<false>(blocks.format),
                ElementShape(1, operands[0].Elements()), context, arguments);
}

Status DecodeBlocks(const OpAttrs& attrs, std::span<const TensorView> operands,
                    const Context& context) {
  const auto& blocks = std::get<BlockAttrs>(attrs);
  const auto kernel = blocks.format == Format::kFP8          ? DecodeKernel<Format::kFP8>
                      : blocks.format == Format::kInt4Linear ? DecodeKernel<Format::kInt4Linear>
                      : blocks.format == Format::kNF4        ? DecodeKernel<Format::kNF4>
                                                             : DecodeKernel<Format::kInt8Linear>;
  return Launch("decode_blocks", kernel, ElementShape(1, operands[2].Elements()), context,
                ArgumentsOf(blocks, operands[2], operands[0], operands[1]));
}

// Parts of which not all begin on a pack are read by single codes.
Status SumCodes(const OpAttrs& attrs, std::span<const TensorView> operands,
                const Context& context) {
  const auto& blocks = std::get<BlockAttrs>(attrs);
  const TensorView &codes = operands[0], &scales = operands[1];
  const auto kernel = blocks.format == Format::kFP8          ? SumKernel<Format::kFP8>
                      : blocks.format == Format::kInt4Linear ? SumKernel<Format::kInt4Linear>
                      : blocks.format == Format::kNF4        ? SumKernel<Format::kNF4>
                                                             : SumKernel<Format::kInt8Linear>;
  BlockArguments arguments = ArgumentsOf(blocks, operands[2], codes, scales);
  arguments.wide = arguments.wide && codes.size[1] % kPack == 0;
  const Parts parts = {
      .count = codes.size[0], .code_stride = codes.size[1], .scale_stride = scales.size[1]};
  return Launch("sum_blocks", kernel, ElementShape(1, arguments.count), context, arguments, parts);
}

}  // namespace terrace::kernels::cuda
