// A short exponential for softmax and sigmoid.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Thread-safe: no state.
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

// t = n + f with n whole and f in [-1/2, 1/2]. Adding 1.5 * 2^23 rounds, and leaves n in the low
// bits of the sum.
struct WholeAndRest {
  V shifted;
  V rest;
};
HWY_INLINE WholeAndRest SplitExponent(V t) {
  const V magic = hn::Set(D(), 12582912.0f);
  const V shifted = hn::Add(t, magic);
  return {shifted, hn::Sub(t, hn::Sub(shifted, magic))};
}

// p 2^n, for an n that leaves a normal number.
HWY_INLINE V ScaleByPower(V p, V shifted) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(D(), hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// 2^t for t in [-126, 126], relative error below 3e-7: half as many instructions as a general
// exponential. A NaN stays one.
HWY_INLINE V PowerOfTwo(V t) {
  const D d;
  const auto [shifted, f] = SplitExponent(t);
  // Minimax on [-1/2, 1/2].
  V p = hn::Set(d, 1.32764716e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 9.67554155e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.55071328e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40221197e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.93146967e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.00000007f));
  return ScaleByPower(p, shifted);
}

// The same with a relative error of 3e-6.
HWY_INLINE V RoughPowerOfTwo(V t) {
  const D d;
  const auto [shifted, f] = SplitExponent(t);
  V p = hn::Set(d, 9.57010221e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 5.59178591e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40247443e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.93121791e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.99999285e-1f));
  return ScaleByPower(p, shifted);
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
