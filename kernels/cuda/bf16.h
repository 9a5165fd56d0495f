// bf16 in memory, f32 in arithmetic: the conversions of the CUDA kernels.
//
// Compiles as host code too, so that what kernels compute is tested without a GPU. Rounds to the
// nearest, ties to even; a NaN stays one. Subnormal numbers are kept. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/host_device.h"

namespace terrace::kernels::cuda {

struct BF16 {
  uint16_t bits;
};

TERRACE_HOST_DEVICE inline float ToFloat(BF16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
#endif
}

TERRACE_HOST_DEVICE inline BF16 ToBF16(float value) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return {half};
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

// Two neighbours in one register, the first in the lower half: what matrix instructions take.
TERRACE_HOST_DEVICE inline uint32_t PackBF16(float first, float second) {
  return ToBF16(first).bits | static_cast<uint32_t>(ToBF16(second).bits) << 16;
}

TERRACE_HOST_DEVICE inline float RoundToBF16(float value) { return ToFloat(ToBF16(value)); }

}  // namespace terrace::kernels::cuda
