// GELU (tanh form) and its slope, shared by the activation kernels and the matmul's epilogue: a
// product's activation can be recomputed from the stored product, bit for bit.
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

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
