// Numbers of 8 bits, and the scale of a tensor that is quantised to them: what every backend means
// by an fp8 product.
//
// The formats are those of the OCP 8-bit Floating Point Specification 1.0 (Micikevicius et al.
// 2022, arXiv 2209.05433), as NVIDIA's tensor cores read them. E4M3: no infinities, largest 448,
// smallest normal 2^-6, quantum below it 2^-9. E5M2: largest 57344, 2^-14, 2^-16; its infinities
// are never made. Rounding is to the nearest, ties to even; what is beyond the largest number
// becomes the largest (saturation); a NaN becomes 0x7f.
//
// The scale is made just in time from the largest magnitude of the very tensor that is quantised,
// so that the magnitude lands on the format's largest number: TransformerEngine's
// Float8CurrentScaling and torchao's tensorwise scaling, both of which divide as here instead of
// rounding the scale to a power of two. An element x becomes the code of float(x) * scale; the
// product of two codes is worth their product times both factors.
//
// Compiles for the device too. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TERRACE_FP8_FUNCTION __host__ __device__ inline
#else
#define TERRACE_FP8_FUNCTION inline
#endif

namespace terrace::kernels {

enum class Fp8Format : uint8_t { kE4M3, kE5M2 };

struct Fp8Numbers {
  int fraction_bits;
  int bias;               // of the exponent
  uint32_t largest_code;  // of a finite number
  float largest;
  float smallest_normal;
};
TERRACE_FP8_FUNCTION constexpr Fp8Numbers NumbersOf(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? Fp8Numbers{3, 7, 0x7e, 448.0f, 0x1p-6f}
                                    : Fp8Numbers{2, 15, 0x7b, 57344.0f, 0x1p-14f};
}

inline constexpr uint8_t kFp8NaN = 0x7f;

TERRACE_FP8_FUNCTION uint32_t F32Bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TERRACE_FP8_FUNCTION uint8_t ToFp8(float value, Fp8Format format) {
  const Fp8Numbers numbers = NumbersOf(format);
  const uint32_t bits = F32Bits(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return kFp8NaN;
  uint32_t code;
  if (magnitude < F32Bits(numbers.smallest_normal)) {
    // The sum's last bit is worth one quantum: the addition itself rounds.
    const float quanta =
        numbers.smallest_normal * static_cast<float>(1 << (23 - numbers.fraction_bits));
    float absolute;
    memcpy(&absolute, &magnitude, sizeof(absolute));
    code = F32Bits(absolute + quanta) - F32Bits(quanta);
  } else {
    const int dropped = 23 - numbers.fraction_bits;
    const uint32_t rebias = static_cast<uint32_t>(127 - numbers.bias) << 23;
    const uint32_t odd = magnitude >> dropped & 1u;
    code = (magnitude - rebias + (1u << (dropped - 1)) - 1u + odd) >> dropped;
    if (code > numbers.largest_code) code = numbers.largest_code;
  }
  return static_cast<uint8_t>(sign | code);
}

// Exact.
TERRACE_FP8_FUNCTION float FromFp8(uint8_t code, Fp8Format format) {
  const Fp8Numbers numbers = NumbersOf(format);
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  uint32_t bits;
  if (magnitude > numbers.largest_code) {
    const bool infinity = format == Fp8Format::kE5M2 && magnitude == numbers.largest_code + 1;
    bits = infinity ? 0x7f800000u : 0x7fc00000u;
  } else if (magnitude >> numbers.fraction_bits == 0) {
    const float quantum = numbers.smallest_normal / static_cast<float>(1 << numbers.fraction_bits);
    bits = F32Bits(static_cast<float>(magnitude) * quantum);
  } else {
    const uint32_t rebias = static_cast<uint32_t>(127 - numbers.bias) << 23;
    bits = (magnitude << (23 - numbers.fraction_bits)) + rebias;
  }
  bits |= sign;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

struct Fp8Scale {
  float scale;   // of an element before it is rounded
  float factor;  // of its code: 1 / scale
};

// Of a tensor whose largest magnitude, NaNs not counted, is `largest`. Nothing but zeros is left as
// it is. A tensor with an infinity has no scale: its factor is NaN, and so is all that comes of it,
// so that the step is skipped. Magnitudes below 2^-117 or so are not brought up to the format's
// largest: both scale and factor stay normal numbers.
TERRACE_FP8_FUNCTION Fp8Scale ScaleOf(float largest, Fp8Format format) {
  constexpr float kMost = 0x1p126f;
  if (largest == 0) return {1, 1};
  if (!(largest <= 0x1.fffffep127f)) return {1, largest - largest};
  const float scale = NumbersOf(format).largest / largest;
  if (!(scale < kMost)) return {kMost, 0x1p-126f};
  return {scale, 1 / scale};
}

}  // namespace terrace::kernels
