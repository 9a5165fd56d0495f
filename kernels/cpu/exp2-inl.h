// A short exponential for softmax and sigmoid.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma once. Thread-safe: no
// state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_EXP2_INL_H_
#undef TERRACE_KERNELS_CPU_EXP2_INL_H_
#else
#define TERRACE_KERNELS_CPU_EXP2_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {

// 2^t for t in [-126, 126], relative error below 3e-7: half as many instructions as a general exponential.
HWY_INLINE V PowerOfTwo(V t) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto n = hn::NearestInt(t);
  const V f = hn::Sub(t, hn::ConvertTo(d, n));
  // Minimax on [-1/2, 1/2].
  V p = hn::Set(d, 1.3333558e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 9.6181291e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.5504109e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022651e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9314718e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(n)));
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
