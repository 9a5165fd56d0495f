// The arithmetic of attention in f32: a micro-kernel for all its products, and 2^x.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_ATTENTION_F32_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_ATTENTION_F32_PRODUCT_INL_H_
#undef TERRACE_KERNELS_CPU_ATTENTION_F32_PRODUCT_INL_H_
#else
#define TERRACE_KERNELS_CPU_ATTENTION_F32_PRODUCT_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attention.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE::attention_f32 {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
inline constexpr D kD;
inline constexpr int64_t kPanel = kAttentionQueryBlock;
inline constexpr int64_t kKeys = kAttentionKeyBlock;
// Rows of the micro-kernel: eight by two vectors where there are 32 registers, else four by two.
inline constexpr int64_t kRows = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

inline int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(kD)); }

// C[m,n] = (+=) A[m,k] B[k,n]; element (i, p) of A is a[i * a_row + p * a_col]. m is a multiple of
// 8, n of 32.
template <bool kAccumulate>
void Multiply(int64_t m, int64_t n, int64_t k, const float* HWY_RESTRICT a, int64_t a_row,
              int64_t a_col, const float* HWY_RESTRICT b, int64_t b_row, float* HWY_RESTRICT c,
              int64_t c_row) {
  const int64_t lanes = Lanes();
  for (int64_t i = 0; i < m; i += kRows) {
    for (int64_t j = 0; j < n; j += 2 * lanes) {
      V sum[kRows][2];
      for (int64_t r = 0; r < kRows; ++r) {
        float* row = c + (i + r) * c_row + j;
        sum[r][0] = kAccumulate ? hn::Load(kD, row) : hn::Zero(kD);
        sum[r][1] = kAccumulate ? hn::Load(kD, row + lanes) : hn::Zero(kD);
      }
      const float* a_block = a + i * a_row;
      const float* b_block = b + j;
      for (int64_t p = 0; p < k; ++p) {
        const V b0 = hn::Load(kD, b_block + p * b_row);
        const V b1 = hn::Load(kD, b_block + p * b_row + lanes);
        for (int64_t r = 0; r < kRows; ++r) {
          const V factor = hn::Set(kD, a_block[r * a_row + p * a_col]);
          sum[r][0] = hn::MulAdd(factor, b0, sum[r][0]);
          sum[r][1] = hn::MulAdd(factor, b1, sum[r][1]);
        }
      }
      for (int64_t r = 0; r < kRows; ++r) {
        float* row = c + (i + r) * c_row + j;
        hn::Store(sum[r][0], kD, row);
        hn::Store(sum[r][1], kD, row + lanes);
      }
    }
  }
}

// 2^x for x <= 127, within 2 ulp; 0 below 2^-126. NaN stays NaN.
HWY_INLINE V Exp2(V x) {
  const hn::RebindToSigned<D> di;
  const V whole = hn::Round(x);
  const V f = hn::Sub(x, whole);
  V y = hn::Set(kD, 0.00015345812f);  // minimax on [-1/2, 1/2], relative error 2e-9
  y = hn::MulAdd(y, f, hn::Set(kD, 0.0013399931f));
  y = hn::MulAdd(y, f, hn::Set(kD, 0.0096184890f));
  y = hn::MulAdd(y, f, hn::Set(kD, 0.055503288f));
  y = hn::MulAdd(y, f, hn::Set(kD, 0.24022647f));
  y = hn::MulAdd(y, f, hn::Set(kD, 0.69314721f));
  y = hn::MulAdd(y, f, hn::Set(kD, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, whole), hn::Set(di, 127)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(kD, -126.0f)), hn::Mul(y, hn::BitCast(kD, exponent)));
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE::attention_f32
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
