// Numbers of 8 or 4 bits in blocks that share one f32 scale, made just in time from the block's
// largest magnitude: what every backend means by the formats int8_linear, int4_linear, fp8 and nf4
// (format.h).
//
//   int8_linear  Codes are whole numbers from -127 to 127 in two's complement, rounded to the
//                nearest, ties to even; the scale is the largest magnitude over 127 (absmax
//                quantisation, Dettmers et al. 2022, arXiv 2208.07339, section 2.1).
//   int4_linear  The same from -7 to 7. Of two codes in a byte the lower bits have the first.
//   fp8          E4M3 of fp8.h, whose largest number the largest magnitude becomes (as in
//                DeepSeek-V3, arXiv 2412.19437, section 3.3).
//   nf4          The nearest of 16 numbers from -1 to 1 that are quantiles of a normal distribution
//                (QLoRA, Dettmers et al. 2023, arXiv 2305.14314, appendix E); the scale is the
//                largest magnitude. Of two codes in a byte the lower bits have the first, where
//                bitsandbytes has it in the upper ones.
//
// An element is worth the number of its code times the scale. A block with an infinity or a NaN has
// no scale: it is NaN, and so is all that comes of the block. A block of zeros has the scale 0, or
// 1 in fp8, and comes back as zeros; so do magnitudes of a block of another format whose largest is
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
inline constexpr float kInt4Most = 7;

// The numbers of nf4 bit for bit as bitsandbytes has them, in ascending order, and the middles
// between neighbours: a code is how many of these lie below the element over its scale.
struct NormalMap {
  static constexpr int kCodes = 16;
  float number[kCodes] = {
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f,
  };
  float bound[kCodes - 1] = {};

  constexpr NormalMap() {
    for (int i = 0; i < kCodes - 1; ++i) bound[i] = (number[i] + number[i + 1]) / 2;
  }
};
inline constexpr NormalMap kNormalMap;

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
// larger than all others. `format` is one of the four.
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
  if (format == Format::kNF4) return {most, 1 / most};
  const float codes = format == Format::kInt4Linear ? kInt4Most : kInt8Most;
  return {most / codes, codes / most};
}

TERRACE_FP8_FUNCTION uint8_t NormalCode(float scaled) {
  constexpr NormalMap map = kNormalMap;
  uint8_t code = 0;
  for (const float bound : map.bound) code += scaled > bound ? 1 : 0;
  return code;
}

// By the code's bits, a choice among half as many numbers each: no look-up in memory.
TERRACE_FP8_FUNCTION float NormalNumber(uint8_t code) {
  constexpr NormalMap map = kNormalMap;
  constexpr int kHalf = NormalMap::kCodes / 2;
  float left[kHalf];
  for (int i = 0; i < kHalf; ++i)
    left[i] = (code & kHalf) != 0 ? map.number[i + kHalf] : map.number[i];
  for (int bit = kHalf / 2; bit > 0; bit /= 2) {
    for (int i = 0; i < bit; ++i) left[i] = (code & bit) != 0 ? left[i + bit] : left[i];
  }
  return left[0];
}

// The code of an element times the inverse of its block's scale; of 4 bits the upper ones are 0.
TERRACE_FP8_FUNCTION uint8_t BlockCode(float scaled, Format format) {
  if (format == Format::kFP8) return ToFp8(scaled, Fp8Format::kE4M3);
  if (format == Format::kNF4) return NormalCode(scaled);
  const float most = format == Format::kInt4Linear ? kInt4Most : kInt8Most;
  float inside = scaled <= most ? scaled : most;  // a NaN as well: its block's scale is one
  inside = inside >= -most ? inside : -most;
  const auto code = static_cast<uint8_t>(static_cast<int8_t>(rintf(inside)));
  return format == Format::kInt4Linear ? code & 0xf : code;
}

// The number of a code, before it is multiplied by its block's scale.
TERRACE_FP8_FUNCTION float BlockNumber(uint8_t code, Format format) {
  if (format == Format::kFP8) return FromFp8(code, Fp8Format::kE4M3);
  if (format == Format::kNF4) return NormalNumber(code);
  if (format == Format::kInt4Linear) return static_cast<float>(((code & 0xf) ^ 8) - 8);
  return static_cast<float>(static_cast<int8_t>(code));
}

// What a rank keeps of what codes were not worth: an average over the encodings, of which each new
// one makes up so much. All of it at once would be sent again as noise, which Adam's second moment
// takes for larger gradients; the average is what codes lose again and again (LoCo, Xie et al.
// 2024, arXiv 2407.04480, whose implementation in DeepSpeed has the same default, err_beta 0.8).
inline constexpr float kResidualNew = 0.2f;
TERRACE_FP8_FUNCTION float KeptResidual(float residual, float lost) {
  return residual + kResidualNew * (lost - residual);
}

// Where block b of `blocks` is among codes that come part by part: `runs` runs of `parts` parts
// each, of which the parts of one number are put one behind the other.
TERRACE_FP8_FUNCTION int64_t PlaceInParts(int64_t b, int64_t blocks, int64_t runs, int64_t parts) {
  if (runs == 1) return b;
  const int64_t of_part = blocks / (runs * parts);
  const int64_t run = b / (of_part * parts), part = b / of_part % parts;
  return (part * runs + run) * of_part + b % of_part;
}

}  // namespace terrace::kernels
