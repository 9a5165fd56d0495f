// Operands of fp8 products: the largest magnitude, which gives the scale, then codes in rows of K
// neighbours, transposed where the operand is stored the other way.
//
// Two launches: blocks note the largest magnitudes of their parts; then every block compares those
// notes for itself and quantises tiles. A largest number is the same in whatever order it is looked
// for.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/row_packs.cuh"
#include "kernels/fp8.h"

namespace terrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct LargestArguments {
  Operand x;
  int64_t rows, columns;
  int64_t packs_per_row;
  bool wide;
  float* parts;
};

__global__ void __launch_bounds__(kThreads) LargestKernel(LargestArguments a) {
  const int64_t packs = a.rows * a.packs_per_row;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  float largest = 0;
  for (int64_t pack = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; pack < packs;
       pack += step) {
    const int64_t row = pack / a.packs_per_row;
    float x[kPack];
    LoadRowPack(a.x, {row, 0, a.columns, a.wide}, (pack - row * a.packs_per_row) * kPack, x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) largest = fmaxf(largest, fabsf(x[i]));  // never a NaN
  }
  largest = BlockReduce(largest, 0.0f, Largest());
  if (threadIdx.x == 0) a.parts[blockIdx.x] = largest;
}

// Two codes, the first in the lower half. The instruction is what ToFp8 computes.
template <Fp8Format kFormat>
__device__ uint32_t TwoCodes(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t codes;
  if constexpr (kFormat == Fp8Format::kE4M3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  }
  return codes;
#else
  return ToFp8(first, kFormat) | static_cast<uint32_t>(ToFp8(second, kFormat)) << 8;
#endif
}

struct alignas(8) EightCodes {
  uint32_t words[2];
};
static_assert(sizeof(EightCodes) == kPack);

template <Fp8Format kFormat>
__device__ EightCodes CodesOf(const float* x, float scale) {
  EightCodes codes;
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const float* four = x + 4 * w;
    codes.words[w] = TwoCodes<kFormat>(four[0] * scale, four[1] * scale) |
                     TwoCodes<kFormat>(four[2] * scale, four[3] * scale) << 16;
  }
  return codes;
}

struct QuantiseArguments {
  Operand from;
  int64_t lines, padded_lines, k, padded_k;
  bool wide;
  std::byte* codes;
  const float* parts;
  int64_t count;  // of parts
  float* factor;
};

constexpr int kTile = 64;                                    // lines, and K
constexpr int kTilePacks = kTile / static_cast<int>(kPack);  // of a row of a tile
constexpr int kTileStride = kTilePacks + 1;                  // packs: banks are shared less

// A row of codes is a row of `from`, or a column of it that goes through shared memory.
template <Fp8Format kFormat, bool kTransposed>
__global__ void __launch_bounds__(kThreads) QuantiseKernel(QuantiseArguments a) {
  float largest = 0;
  for (int64_t i = threadIdx.x; i < a.count; i += blockDim.x) largest = fmaxf(largest, a.parts[i]);
  const Fp8Scale scale = ScaleOf(BlockReduce(largest, 0.0f, Largest()), kFormat);
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.factor = scale.factor;

  __shared__ EightCodes tile[kTransposed ? kTile * kTileStride : 1];
  const int64_t tiles_of_k = DivideUp(a.padded_k, kTile);
  const int64_t tiles = DivideUp(a.padded_lines, kTile) * tiles_of_k;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t first_line = t / tiles_of_k * kTile;
    const int64_t first_k = t % tiles_of_k * kTile;
    if constexpr (kTransposed) {
      __syncthreads();  // the tile before has been written
      for (int pack = static_cast<int>(threadIdx.x); pack < kTile * kTilePacks; pack += kThreads) {
        const int k = pack / kTilePacks;
        const int line = pack % kTilePacks * static_cast<int>(kPack);
        float x[kPack] = {};
        if (first_k + k < a.k) {
          LoadRowPack(a.from, {first_k + k, 0, a.lines, a.wide}, first_line + line, x);
        }
        const EightCodes codes = CodesOf<kFormat>(x, scale.scale);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          reinterpret_cast<uint8_t*>(tile + (line + i) * kTileStride)[k] =
              static_cast<uint8_t>(codes.words[i / 4] >> (8 * (i % 4)));
        }
      }
      __syncthreads();
    }
    for (int pack = static_cast<int>(threadIdx.x); pack < kTile * kTilePacks; pack += kThreads) {
      const int64_t line = first_line + pack / kTilePacks;
      const int64_t k = first_k + pack % kTilePacks * kPack;
      if (line >= a.padded_lines || k >= a.padded_k) continue;
      EightCodes codes;
      if constexpr (kTransposed) {
        codes = tile[(line - first_line) * kTileStride + (k - first_k) / kPack];
      } else {
        float x[kPack] = {};
        if (line < a.lines) LoadRowPack(a.from, {line, 0, a.k, a.wide}, k, x);
        codes = CodesOf<kFormat>(x, scale.scale);
      }
      *reinterpret_cast<EightCodes*>(a.codes + line * a.padded_k + k) = codes;
    }
  }
}

template <Fp8Format kFormat>
Status LaunchQuantise(bool transpose, const LaunchShape& shape, const QuantiseArguments& arguments,
                      const Context& context) {
  const auto kernel = transpose ? QuantiseKernel<kFormat, true> : QuantiseKernel<kFormat, false>;
  return Launch("fp8 quantisation", kernel, shape, context, arguments);
}

}  // namespace

Status QuantiseFp8(const Fp8Quantisation& q, const Context& context) {
  TensorView from;
  from.data = q.from.data;
  from.dtype = q.from.dtype;
  from.dims = 2;
  from.size = {q.transpose ? q.k : q.lines, q.transpose ? q.lines : q.k};
  from.row_stride = q.from.row_stride;
  const bool wide = AllowsWide(from, false);

  const int64_t packs_per_row = DivideUp(from.size[1], kPack);
  const LaunchShape parts = {
      .grid_x = std::clamp<int64_t>(DivideUp(from.size[0] * packs_per_row, kThreads), 1, kFp8Parts),
      .threads = kThreads};
  Status status = Launch("fp8 largest magnitude", LargestKernel, parts, context,
                         LargestArguments{.x = OperandOf(from),
                                          .rows = from.size[0],
                                          .columns = from.size[1],
                                          .packs_per_row = packs_per_row,
                                          .wide = wide,
                                          .parts = q.parts});
  if (!status.ok()) return status;

  // Enough blocks to fill the largest device several times over: each compares the parts once.
  constexpr int64_t kMaxBlocks = 2048;
  const int64_t padded_k = PadFp8(q.k);
  const int64_t tiles = DivideUp(q.padded_lines, kTile) * DivideUp(padded_k, kTile);
  const LaunchShape shape = {.grid_x = std::clamp<int64_t>(tiles, 1, kMaxBlocks),
                             .threads = kThreads};
  const QuantiseArguments arguments = {.from = OperandOf(from),
                                       .lines = q.lines,
                                       .padded_lines = q.padded_lines,
                                       .k = q.k,
                                       .padded_k = padded_k,
                                       .wide = wide,
                                       .codes = q.codes,
                                       .parts = q.parts,
                                       .count = parts.grid_x,
                                       .factor = q.parts + kFp8Parts};
  return q.format == Fp8Format::kE4M3
             ? LaunchQuantise<Fp8Format::kE4M3>(q.transpose, shape, arguments, context)
             : LaunchQuantise<Fp8Format::kE5M2>(q.transpose, shape, arguments, context);
}

}  // namespace terrace::kernels::cuda
