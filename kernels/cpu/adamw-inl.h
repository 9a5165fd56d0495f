// One step of AdamW on vectors, for all formats of weights and moments.
//
// Included once for each instruction set by foreach_target.h, as simd-inl.h; hence no #pragma once.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_ADAMW_INL_H_
#undef TERRACE_KERNELS_CPU_ADAMW_INL_H_
#else
#define TERRACE_KERNELS_CPU_ADAMW_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

struct State {
  V param, m, v;
};

// The order of torch.optim.AdamW: decay, lerp of m, update of v, then param += -step * m /
// denominator.
HWY_INLINE State Update(const AdamwStep& step, V grad, const State& old) {
  const D d;
  const V g = hn::Mul(grad, hn::Set(d, step.grad_scale));
  const V decayed = hn::Mul(old.param, hn::Set(d, step.decay));
  const V m = hn::MulAdd(hn::Set(d, step.one_minus_beta1), hn::Sub(g, old.m), old.m);
  const V v = hn::MulAdd(hn::Mul(hn::Set(d, step.one_minus_beta2), g), g,
                         hn::Mul(old.v, hn::Set(d, step.beta2)));
  const V denominator =
      hn::MulAdd(hn::Sqrt(v), hn::Set(d, step.inverse_sqrt_correction2), hn::Set(d, step.epsilon));
  const V param = hn::MulAdd(hn::Set(d, step.minus_step_size), hn::Div(m, denominator), decayed);
  return {param, m, v};
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
