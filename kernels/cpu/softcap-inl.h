// Logits as a product gives them, or softly capped: c tanh(x / c), with its slope.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_SOFTCAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_SOFTCAP_INL_H_
#undef TERRACE_KERNELS_CPU_SOFTCAP_INL_H_
#else
#define TERRACE_KERNELS_CPU_SOFTCAP_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {

// tanh(u) with a relative error below 5e-7: near zero by its series, where 1 - exp(-2u) would
// cancel. A NaN stays one: no comparison holds for it, and Max returns its second argument.
HWY_INLINE V TanhOf(V u) {
  const D d;
  constexpr float kMinusTwoLog2E = -2.8853900817779268f;
  const V u2 = hn::Mul(u, u);
  V p = hn::Set(d, 62.0f / 2835);
  p = hn::MulAdd(p, u2, hn::Set(d, -17.0f / 315));
  p = hn::MulAdd(p, u2, hn::Set(d, 2.0f / 15));
  p = hn::MulAdd(p, u2, hn::Set(d, -1.0f / 3));
  const V near = hn::MulAdd(hn::Mul(p, u2), u, u);
  const V size = hn::Abs(u), one = hn::Set(d, 1.0f);
  const V t = hn::Max(hn::Set(d, -126.0f), hn::Mul(size, hn::Set(d, kMinusTwoLog2E)));
  const V e = PowerOfTwo(t);
  const V far = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), u);
  return hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.25f)), near, far);
}

// Logits that are taken as they are.
struct Uncapped {
  static constexpr bool kCaps = false;
  HWY_INLINE V operator()(V x) const { return x; }
};

// Logits x that are c tanh(x / c) first.
struct Capped {
  static constexpr bool kCaps = true;
  explicit Capped(float softcap)
      : cap(hn::Set(D(), softcap)), inverse(hn::Set(D(), 1.0f / softcap)) {}

  HWY_INLINE V operator()(V x) const { return hn::Mul(cap, TanhOf(hn::Mul(x, inverse))); }
  // The derivative where the capped logit is z: 1 - tanh^2.
  HWY_INLINE V Slope(V z) const {
    const V t = hn::Mul(z, inverse);
    return hn::NegMulAdd(t, t, hn::Set(D(), 1.0f));
  }
  V cap, inverse;
};

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
