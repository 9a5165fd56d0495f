// GELU (tanh form) and its slope, shared by the activation kernels and the matmul's epilogue: a
// product's activation can be computed again from the stored product, bit for bit.
//
// gelu(x) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3) is the tanh form rewritten: it
// keeps its relative accuracy where the tanh form cancels.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_GELU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_GELU_INL_H_
#undef TERRACE_KERNELS_CPU_GELU_INL_H_
#else
#define TERRACE_KERNELS_CPU_GELU_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {

// `open` is sigmoid(2u), `closed` 1 - sigmoid(2u). Rough: a relative error of 2e-4, a tenth of that
// of rounding the result to bf16.
struct GeluGate {
  V open;
  V closed;
};
inline constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = kGeluLinear * 0.044715f;

template <bool kRough>
HWY_INLINE GeluGate GateOf(V x, V x2) {
  const D d;
  constexpr float kMinusLog2E = -1.4426950408889634f;
  const V t = hn::Mul(x, hn::MulAdd(x2, hn::Set(d, kMinusLog2E * kGeluCubic),
                                    hn::Set(d, kMinusLog2E * kGeluLinear)));
  // A NaN is lost here and comes back when the caller multiplies by x.
  const V clamped = hn::Min(hn::Max(t, hn::Set(d, -126.0f)), hn::Set(d, 126.0f));
  const V e = kRough ? RoughPowerOfTwo(clamped) : PowerOfTwo(clamped);
  const V denominator = hn::Add(e, hn::Set(d, 1.0f));
  const V open = kRough ? RoughReciprocal(denominator) : Reciprocal(denominator);
  return {open, hn::Mul(open, e)};
}

// Rough results below the normal numbers are zero, with their sign: of the ways to round to bf16,
// some do that and some do not.
template <bool kRough>
HWY_INLINE V GeluOf(V x) {
  const D d;
  const V y = hn::Mul(x, GateOf<kRough>(x, hn::Mul(x, x)).open);
  if (!kRough) return y;
  const auto is_subnormal = hn::Lt(hn::Abs(y), hn::Set(d, 1.17549435e-38f));
  return hn::IfThenElse(is_subnormal, hn::And(y, hn::SignBit(d)), y);
}

// s + x s (1 - s) (2u)'. Beyond +-30 it is 1 or 0 to the last bit; cutting x off there keeps x^3
// from growing faster than 1 - s shrinks. A NaN passes: Min and Max return their second argument
// for it.
template <bool kRough>
HWY_INLINE V GeluSlope(V any_x) {
  const D d;
  const V x = hn::Max(hn::Set(d, -30.0f), hn::Min(hn::Set(d, 30.0f), any_x));
  const V x2 = hn::Mul(x, x);
  const GeluGate gate = GateOf<kRough>(x, x2);
  const V slope = hn::MulAdd(x2, hn::Set(d, 3 * kGeluCubic), hn::Set(d, kGeluLinear));
  return hn::MulAdd(hn::Mul(x, slope), hn::Mul(gate.open, gate.closed), gate.open);
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
