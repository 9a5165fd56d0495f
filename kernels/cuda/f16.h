// f16 in memory, f32 in arithmetic: the conversions of the CUDA kernels, as bf16.h has them of
// bf16.
//
// Compiles as host code too (kernels/half.h), to the same bits. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/bf16.h"
#include "kernels/half.h"

namespace terrace::kernels::cuda {

struct F16 {
  uint16_t bits;
};

TERRACE_HOST_DEVICE inline float ToFloat(F16 value) {
#ifdef __CUDA_ARCH__
  float number;
  asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(value.bits));
  return number;
#else
  return HalfToFloat(value.bits);
#endif
}

TERRACE_HOST_DEVICE inline F16 ToF16(float value) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return {half};
#else
  return {FloatToHalf(value)};
#endif
}

TERRACE_HOST_DEVICE inline float RoundToF16(float value) { return ToFloat(ToF16(value)); }

// Two neighbours in one register, the first in the lower half: what matrix instructions take.
template <typename T>
TERRACE_HOST_DEVICE inline uint32_t PackPair(float first, float second);
template <>
TERRACE_HOST_DEVICE inline uint32_t PackPair<BF16>(float first, float second) {
  return PackBF16(first, second);
}
template <>
TERRACE_HOST_DEVICE inline uint32_t PackPair<F16>(float first, float second) {
  return ToF16(first).bits | static_cast<uint32_t>(ToF16(second).bits) << 16;
}

}  // namespace terrace::kernels::cuda
