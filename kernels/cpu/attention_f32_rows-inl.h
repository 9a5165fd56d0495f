// Rows of heads of any element type in and out of the dense f32 rows and panels of attention.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_ATTENTION_F32_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_ATTENTION_F32_ROWS_INL_H_
#undef TERRACE_KERNELS_CPU_ATTENTION_F32_ROWS_INL_H_
#else
#define TERRACE_KERNELS_CPU_ATTENTION_F32_ROWS_INL_H_
#endif

#include <bit>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_f32_product-inl.h"
#include "kernels/half.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE::attention_f32 {

inline float FromBF16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// f16 by the CPU's conversions where it has them (F16C, AVX-512).
inline void FromHalf(const uint16_t* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  int64_t i = 0;
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, D> half;
  for (; i + Lanes() <= count; i += Lanes()) {
    const auto* at = reinterpret_cast<const hwy::float16_t*>(in + i);
    hn::StoreU(hn::PromoteTo(kD, hn::LoadU(half, at)), kD, out + i);
  }
#endif
  for (; i < count; ++i) out[i] = HalfToFloat(in[i]);
}

inline void ToHalf(const float* HWY_RESTRICT values, int64_t count, float factor,
                   uint16_t* HWY_RESTRICT out) {
  int64_t i = 0;
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, D> half;
  for (; i + Lanes() <= count; i += Lanes()) {
    const V v = hn::Mul(hn::LoadU(kD, values + i), hn::Set(kD, factor));
    hn::StoreU(hn::DemoteTo(half, v), half, reinterpret_cast<hwy::float16_t*>(out + i));
  }
#endif
  for (; i < count; ++i) out[i] = FloatToHalf(values[i] * factor);
}

inline void LoadRow(const HeadRows& rows, int64_t row, int64_t count, int64_t padded,
                    float* HWY_RESTRICT out) {
  if (rows.dtype == DType::kF32) {
    std::memcpy(out, static_cast<const float*>(rows.data) + row * rows.row_stride, count * 4);
  } else {
    const auto* in = static_cast<const uint16_t*>(rows.data) + row * rows.row_stride;
    if (rows.dtype == DType::kF16) {
      FromHalf(in, count, out);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = FromBF16(in[i]);
    }
  }
  for (int64_t i = count; i < padded; ++i) out[i] = 0;
}

inline void AddRow(const HeadRows& rows, int64_t row, int64_t count, float factor,
                   const float* HWY_RESTRICT values) {
  auto* out = static_cast<float*>(rows.data) + row * rows.row_stride;
  for (int64_t i = 0; i < count; ++i) out[i] += values[i] * factor;
}

inline void StoreRow(const HeadRows& rows, int64_t row, int64_t count, float factor,
                     const float* HWY_RESTRICT values) {
  if (rows.dtype == DType::kF32) {
    auto* out = static_cast<float*>(rows.data) + row * rows.row_stride;
    for (int64_t i = 0; i < count; ++i) out[i] = values[i] * factor;
  } else {
    auto* out = static_cast<uint16_t*>(rows.data) + row * rows.row_stride;
    if (rows.dtype == DType::kF16) return ToHalf(values, count, factor, out);
    for (int64_t i = 0; i < count; ++i) out[i] = ToBF16(values[i] * factor);
  }
}

// Rows [first, first + count) of a sequence as dense rows; rows from `end` on are zero.
inline void PackRows(const HeadRows& rows, int64_t first, int64_t count, int64_t end,
                     int64_t head_dim, int64_t padded, float* out) {
  for (int64_t r = 0; r < count; ++r) {
    const bool inside = first + r < end;
    LoadRow(rows, inside ? first + r : 0, inside ? head_dim : 0, padded, out + r * padded);
  }
}

// [32, padded] to [padded, 32].
inline void TransposePanel(const float* HWY_RESTRICT rows, int64_t padded,
                           float* HWY_RESTRICT panel) {
  for (int64_t i = 0; i < padded; ++i) {
    for (int64_t r = 0; r < kPanel; ++r) panel[i * kPanel + r] = rows[r * padded + i];
  }
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE::attention_f32
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
