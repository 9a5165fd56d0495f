// One number of 16 bits at a time: IEEE 754 binary16 ("f16", "half") to and from f32, in plain
// integer arithmetic, for code without vectors or tensor cores. Rounds to the nearest, ties to
// even; beyond 65504 that is infinity from 65520 on; a NaN stays one. Subnormal numbers are kept.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

// Kernels of both backends use it.
#ifdef __CUDACC__
#define TERRACE_BOTH_SIDES __host__ __device__
#else
#define TERRACE_BOTH_SIDES
#endif

namespace terrace::kernels {

TERRACE_BOTH_SIDES inline float HalfToFloat(uint16_t half) {
  constexpr uint32_t kMagic = 113u << 23;  // 2^-14: the smallest normal number
  uint32_t bits = (half & 0x7fffu) << 13;
  const uint32_t exponent = bits & 0x0f800000u;
  bits += 112u << 23;
  if (exponent == 0x0f800000u) bits += 112u << 23;  // infinity and NaN
  float value;
  if (exponent == 0) {
    bits += 1u << 23;
    float magic;
    std::memcpy(&value, &bits, sizeof(value));
    std::memcpy(&magic, &kMagic, sizeof(magic));
    value -= magic;
    std::memcpy(&bits, &value, sizeof(bits));
  }
  bits |= (half & 0x8000u) << 16;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

TERRACE_BOTH_SIDES inline uint16_t FloatToHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;
  if (bits >= 0x47800000u) return sign | 0x7c00u;  // 2^16 and beyond
  if (bits < 0x38800000u) {                        // below 2^-14
    // The sum's last bit is worth 2^-24, as a subnormal half's is: the addition rounds.
    float number;
    std::memcpy(&number, &bits, sizeof(number));
    number += 0.5f;
    std::memcpy(&bits, &number, sizeof(bits));
    return sign | static_cast<uint16_t>(bits - 0x3f000000u);
  }
  const uint32_t odd = bits >> 13 & 1u;
  return sign | static_cast<uint16_t>((bits - (112u << 23) + 0xfffu + odd) >> 13);
}

}  // namespace terrace::kernels
