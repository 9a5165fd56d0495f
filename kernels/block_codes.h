// Numbers of 8 bits in blocks that share one f32 scale, made just in time from the block's largest
// magnitude: what every backend means by the formats int8_linear and fp8 (format.h).
//
//   int8_linear  Codes are whole numbers from -127 to 127 in two's complement, rounded to the
//                nearest, ties to even; the scale is the largest magnitude over 127 (absmax
//                quantisation, Dettmers et al. 2022, arXiv 2208.07339, section 2.1).
//   fp8          E4M3 of fp8.h, whose largest number the largest magnitude becomes (as in
//                DeepSeek-V3, arXiv 2412.19437, section 3.3).
//
// An element is worth the number of its code times the scale. A block with an infinity or a NaN has
// no scale: it is NaN, and so is all that comes of the block. A block of zeros has the scale 0, or
// 1 in fp8, and comes back as zeros; so do magnitudes of a block of int8_linear whose largest is
// below 2^-120.
//
// Compiles for the device too. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/format.h"
#include "kernels/fp8.h"

namespace terrace::kernels {

inline constexpr float kInt8Most = 127;

struct BlockScale {
  float scale;    // of codes, as it is stored
  float inverse;  // of elements, before they become codes
};

// The bits of the larger magnitude; those of what is not finite are larger than all others.
TERRACE_FP8_FUNCTION uint32_t LargerMagnitude(uint32_t bits, float value) {
  const uint32_t magnitude = F32Bits(value) & 0x7fffffffu;
  return magnitude > bits ? magnitude : bits;
}

TERRACE_FP8_FUNCTION float F32Of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Of a block whose largest magnitude has the bits `largest`, those of what is not finite being
// larger than all others. `format` is one of the two.
TERRACE_FP8_FUNCTION BlockScale ScaleOfBlock(uint32_t largest, Format format) {
  constexpr uint32_t kInfinity = 0x7f800000u, kNaN = 0x7fc00000u;
  constexpr float kLeast = 0x1p-120f;
  if (largest >= kInfinity) return {F32Of(kNaN), 0};
  const float most = F32Of(largest);
  if (format == Format::kFP8) {
    const Fp8Scale scale = ScaleOf(most, Fp8Format::kE4M3);
    return {scale.factor, scale.scale};
  }
  if (most < kLeast) return {0, 0};
  return {most / kInt8Most, kInt8Most / most};
}

// The code of an element times the inverse of its block's scale.
TERRACE_FP8_FUNCTION uint8_t BlockCode(float scaled, Format format) {
  if (format == Format::kFP8) return ToFp8(scaled, Fp8Format::kE4M3);
  float inside =
      scaled <= kInt8Most ? scaled : kInt8Most;  // a NaN as well: its block's scale is one
  inside = inside >= -kInt8Most ? inside : -kInt8Most;
  return static_cast<uint8_t>(static_cast<int8_t>(rintf(inside)));
}

// The number of a code, before it is multiplied by its block's scale.
TERRACE_FP8_FUNCTION float BlockNumber(uint8_t code, Format format) {
  if (format == Format::kFP8) return FromFp8(code, Fp8Format::kE4M3);
  return static_cast<float>(static_cast<int8_t>(code));
}

}  // namespace terrace::kernels
