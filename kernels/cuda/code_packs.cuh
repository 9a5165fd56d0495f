// Eight codes of 8 bits a thread, and the largest magnitude among lanes of a warp that share a
// block.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/block_codes.h"
#include "kernels/cuda/elementwise.cuh"

namespace terrace::kernels::cuda {

// What a warp takes at a time, a pack a lane: whole blocks, as none is longer.
inline constexpr int64_t kWarpElements = kWarp * kPack;

struct alignas(8) CodePack {
  uint8_t codes[kPack];
};

__device__ inline CodePack LoadCodes(const uint8_t* from, int count, bool wide) {
  if (wide) return *reinterpret_cast<const CodePack*>(from);
  CodePack pack = {};
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    if (i < count) pack.codes[i] = from[i];
  }
  return pack;
}

__device__ inline void StoreCodes(const CodePack& pack, uint8_t* to, int count, bool wide) {
  if (wide) {
    *reinterpret_cast<CodePack*>(to) = pack;
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    if (i < count) to[i] = pack.codes[i];
  }
}

// The bits of the largest magnitude of the packs of `lanes` neighbouring lanes, a power of two of
// them, the same in each. All lanes of the warp come here.
__device__ inline uint32_t LargestOfLanes(const float* numbers, int lanes) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) bits = LargerMagnitude(bits, numbers[i]);
  for (int step = lanes / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, bits, step);
    bits = other > bits ? other : bits;
  }
  return bits;
}

// The elements of a pack that begins at `first` of `count`: 0 to kPack.
__device__ inline int ElementsOfPack(int64_t first, int64_t count) {
  const int64_t left = count - first;
  return left >= kPack ? static_cast<int>(kPack) : left > 0 ? static_cast<int>(left) : 0;
}

}  // namespace terrace::kernels::cuda
