// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/convert.h"

#include <cmath>
#include <cstring>

namespace terrace {
namespace {

using kernels::DType;

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

float LoadFloat(DType dtype, const std::byte* from) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return dtype == DType::kBF16 ? FloatOfBf16(bits) : FloatOfF16(bits);
}

void StoreFloat(DType dtype, float value, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const uint16_t bits = dtype == DType::kBF16 ? Bf16OfFloat(value) : F16OfFloat(value);
  std::memcpy(to, &bits, sizeof(bits));
}

}  // namespace

uint16_t Bf16OfFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);  // stays a NaN, quiet
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float FloatOfF16(uint16_t bits) {
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) return mantissa != 0 ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

uint16_t F16OfFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to 65520 or more
  if (magnitude >= 0x38800000) {                      // normal: 13 bits of mantissa go
    return sign |
           static_cast<uint16_t>((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
  }
  // Subnormal: adding 0.5 leaves the value, rounded to a multiple of 2^-24, in the low bits.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
}

bool CanConvert(DType from, DType to) { return from == to || (IsFloat(from) && IsFloat(to)); }

void ConvertElements(DType from, const std::byte* source, DType to, std::byte* target,
                     int64_t elements) {
  if (from == to) {
    std::memcpy(target, source, elements * kernels::SizeOf(to));
    return;
  }
  const int64_t source_bytes = kernels::SizeOf(from);
  const int64_t target_bytes = kernels::SizeOf(to);
  for (int64_t i = 0; i < elements; ++i) {
    StoreFloat(to, LoadFloat(from, source + i * source_bytes), target + i * target_bytes);
  }
}

}  // namespace terrace
