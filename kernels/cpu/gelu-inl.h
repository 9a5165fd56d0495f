// GELU and its slope. The tanh form is shared by the activation kernels and the matmul's epilogue:
// a product's activation can be recomputed from the stored product, bit for bit.
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

// `open` is sigmoid(2u), `closed` 1 - sigmoid(2u). Rough: a relative error of 3e-6, far below that
// of rounding the result to bf16. The estimate of a reciprocal alone would be 3e-4 off where it has
// 12 bits.
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
  const V open = Reciprocal(hn::Add(e, hn::Set(d, 1.0f)));
  return {open, hn::Mul(open, e)};
}

template <bool kRough>
HWY_INLINE V GeluOf(V x) {
  return hn::Mul(x, GateOf<kRough>(x, hn::Mul(x, x)).open);
}

// Zero, with its sign, in place of a subnormal number: what the CPU's instruction that rounds to
// bf16 does, and rounding by arithmetic does not.
HWY_INLINE V FlushSubnormal(V y) {
  const D d;
  const auto is_subnormal = hn::Lt(hn::Abs(y), hn::Set(d, 1.17549435e-38f));
  return hn::IfThenElse(is_subnormal, hn::And(y, hn::SignBit(d)), y);
}

// s + x s (1 - s) (2u)'. REQUIRES: |x| < 2^40; beyond that x^3 grows faster than 1 - s shrinks.
template <bool kRough>
HWY_INLINE V GeluSlope(V x) {
  const D d;
  const V x2 = hn::Mul(x, x);
  const GeluGate gate = GateOf<kRough>(x, x2);
  const V slope = hn::MulAdd(x2, hn::Set(d, 3 * kGeluCubic), hn::Set(d, kGeluLinear));
  return hn::MulAdd(hn::Mul(x, slope), hn::Mul(gate.open, gate.closed), gate.open);
}

// x where |x| < 30: beyond, a slope is 1 or 0 to the last bit. A NaN passes: Min and Max return
// their second argument for it.
HWY_INLINE V Inside(V x) { return hn::Max(hn::Set(D(), -30.0f), hn::Min(hn::Set(D(), 30.0f), x)); }

// The normal distribution at x: its density, and how much of it lies below x. The tail is
// erfc(a) / 2 with a = |x| / sqrt(2), whose relative error is below 1.2e-7 for all a (Press et al.,
// Numerical Recipes, 2nd edition, section 6.2, erfcc); the other side is its complement.
// REQUIRES: |x| <= 30.
struct NormalParts {
  V below;
  V density;
};
HWY_INLINE NormalParts NormalPartsOf(V x) {
  const D d;
  constexpr float kInverseSqrt8 = 0.35355339059327373f, kLog2E = 1.4426950408889634f;
  constexpr float kInverseSqrtTwoPi = 0.3989422804014327f;
  const V t = Reciprocal(hn::MulAdd(hn::Abs(x), hn::Set(d, kInverseSqrt8), hn::Set(d, 1.0f)));
  V p = hn::Set(d, 0.17087277f);
  p = hn::MulAdd(p, t, hn::Set(d, -0.82215223f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.48851587f));
  p = hn::MulAdd(p, t, hn::Set(d, -1.13520398f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.27886807f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.18628806f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.09678418f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.37409196f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.00002368f));
  p = hn::MulAdd(p, t, hn::Set(d, -1.26551223f));
  const V least = hn::Set(d, -126.0f);
  const V exponent = hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f * kLog2E));
  const V tail = hn::Mul(hn::Mul(hn::Set(d, 0.5f), t),
                         PowerOfTwo(hn::Max(least, hn::MulAdd(p, hn::Set(d, kLog2E), exponent))));
  const V above = hn::Sub(hn::Set(d, 1.0f), tail);
  const V density = hn::Mul(hn::Set(d, kInverseSqrtTwoPi), PowerOfTwo(hn::Max(least, exponent)));
  return {hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, above), density};
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
