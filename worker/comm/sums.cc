// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/sums.h"

#include <bit>

namespace terrace {
namespace {

float FromBF16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// To nearest, ties to even; a NaN stays one.
uint16_t ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

// As in kernels/half.h, which lies beyond this folder's layer: f16 to nearest, ties to even.
float FromF16(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu, sign = uint32_t{bits & 0x8000u} << 16;
  // The exponent's bias is 112 more in f32; a subnormal number is its fraction times 2^-24.
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | magnitude << 13);
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return sign != 0 ? -value : value;
}

uint16_t ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x47800000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {
    // The sum's last bit is worth 2^-24: the addition rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) - 0x3f000000);
  }
  const uint32_t rounded = magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>(rounded >> 13);
}

void AddF32(std::byte* out, const std::byte* a, const std::byte* b, int64_t bytes) {
  auto* sum = reinterpret_cast<float*>(out);
  const auto* x = reinterpret_cast<const float*>(a);
  const auto* y = reinterpret_cast<const float*>(b);
  const int64_t n = bytes / ElementBytes(ReduceType::kF32);
  for (int64_t i = 0; i < n; ++i) sum[i] = x[i] + y[i];
}

void AddBF16(std::byte* out, const std::byte* a, const std::byte* b, int64_t bytes) {
  auto* sum = reinterpret_cast<uint16_t*>(out);
  const auto* x = reinterpret_cast<const uint16_t*>(a);
  const auto* y = reinterpret_cast<const uint16_t*>(b);
  const int64_t n = bytes / ElementBytes(ReduceType::kBF16);
  for (int64_t i = 0; i < n; ++i) sum[i] = ToBF16(FromBF16(x[i]) + FromBF16(y[i]));
}

void AddF16(std::byte* out, const std::byte* a, const std::byte* b, int64_t bytes) {
  auto* sum = reinterpret_cast<uint16_t*>(out);
  const auto* x = reinterpret_cast<const uint16_t*>(a);
  const auto* y = reinterpret_cast<const uint16_t*>(b);
  const int64_t n = bytes / ElementBytes(ReduceType::kF16);
  for (int64_t i = 0; i < n; ++i) {
    sum[i] = ToF16(FromF16(x[i]) + FromF16(y[i]));
  }
}

}  // namespace

Adder AdderOf(ReduceType type) {
  if (type == ReduceType::kF16) return AddF16;
  return type == ReduceType::kBF16 ? AddBF16 : AddF32;
}

int64_t ElementBytes(ReduceType type) { return type == ReduceType::kF32 ? 4 : 2; }

}  // namespace terrace
