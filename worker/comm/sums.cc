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

}  // namespace

Adder AdderOf(ReduceType type) { return type == ReduceType::kBF16 ? AddBF16 : AddF32; }

int64_t ElementBytes(ReduceType type) { return type == ReduceType::kBF16 ? 2 : 4; }

}  // namespace terrace
