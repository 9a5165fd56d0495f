// One step of each rule on vectors, for all formats of weights and moments.
//
// Included once for each instruction set by foreach_target.h, as simd-inl.h; hence no #pragma once.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_UPDATE_INL_H_
#undef TERRACE_KERNELS_CPU_UPDATE_INL_H_
#else
#define TERRACE_KERNELS_CPU_UPDATE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/update.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// What a rule has of one element; moments that it does not keep are ignored.
struct State {
  V param, m, v;
};

// The decay of w, or its penalty in g, is what sets the two apart.
template <bool kDecays>
HWY_INLINE State UpdateAdam(const UpdateStep& step, V g, const State& old) {
  const D d;
  const V decayed = kDecays ? hn::Mul(old.param, hn::Set(d, step.decay)) : old.param;
  const V m = hn::MulAdd(hn::Set(d, step.one_minus_beta1), hn::Sub(g, old.m), old.m);
  const V v = hn::MulAdd(hn::Mul(hn::Set(d, step.one_minus_beta2), g), g,
                         hn::Mul(old.v, hn::Set(d, step.beta2)));
  const V denominator =
      hn::MulAdd(hn::Sqrt(v), hn::Set(d, step.inverse_sqrt_correction2), hn::Set(d, step.epsilon));
  const V param = hn::MulAdd(hn::Set(d, step.minus_step_size), hn::Div(m, denominator), decayed);
  return {param, m, v};
}

HWY_INLINE State UpdateLion(const UpdateStep& step, V g, const State& old) {
  const D d;
  const V decayed = hn::Mul(old.param, hn::Set(d, step.decay));
  const V c =
      hn::MulAdd(hn::Set(d, step.one_minus_beta1), g, hn::Mul(old.m, hn::Set(d, step.beta1)));
  // Zero and what is no number keep to themselves.
  const V sign = hn::IfThenElse(hn::Gt(hn::Abs(c), hn::Zero(d)), hn::CopySign(hn::Set(d, 1), c), c);
  const V m =
      hn::MulAdd(hn::Set(d, step.one_minus_beta2), g, hn::Mul(old.m, hn::Set(d, step.beta2)));
  return {hn::MulAdd(hn::Set(d, step.minus_learning_rate), sign, decayed), m, old.v};
}

// The order of operations of the references that optimizer_rule.h names.
template <OptimizerRule kRule>
HWY_INLINE State Update(const UpdateStep& step, V grad, const State& old) {
  const D d;
  V g = hn::Mul(grad, hn::Set(d, step.grad_scale));
  if constexpr (RowOf(kRule).decays_in_gradient)
    g = hn::MulAdd(hn::Set(d, step.penalty), old.param, g);
  if constexpr (kRule == OptimizerRule::kAdamw) return UpdateAdam<true>(step, g, old);
  if constexpr (kRule == OptimizerRule::kAdam) return UpdateAdam<false>(step, g, old);
  if constexpr (kRule == OptimizerRule::kLion) return UpdateLion(step, g, old);
  const V rate = hn::Set(d, step.minus_learning_rate);
  if constexpr (kRule == OptimizerRule::kSgd) return {hn::MulAdd(rate, g, old.param), old.m, old.v};
  const V m = hn::MulAdd(hn::Set(d, step.beta1), old.m, g);
  const V along = kRule == OptimizerRule::kNesterov ? hn::MulAdd(hn::Set(d, step.beta1), m, g) : m;
  return {hn::MulAdd(rate, along, old.param), m, old.v};
}

template <OptimizerRule kRule>
struct RuleIs {
  static constexpr OptimizerRule kValue = kRule;
  static constexpr int kMoments = RowOf(kRule).moments;
};

// run(RuleIs<rule>()).
template <typename Run>
void ByRule(OptimizerRule rule, const Run& run) {
  switch (rule) {
    case OptimizerRule::kAdamw:
      return run(RuleIs<OptimizerRule::kAdamw>());
    case OptimizerRule::kAdam:
      return run(RuleIs<OptimizerRule::kAdam>());
    case OptimizerRule::kSgd:
      return run(RuleIs<OptimizerRule::kSgd>());
    case OptimizerRule::kMomentum:
      return run(RuleIs<OptimizerRule::kMomentum>());
    case OptimizerRule::kNesterov:
      return run(RuleIs<OptimizerRule::kNesterov>());
    case OptimizerRule::kLion:
      return run(RuleIs<OptimizerRule::kLion>());
    case OptimizerRule::kMuon:
      return;  // of whole matrices: update_matrix.cc
    case OptimizerRule::kAdafactor:
    case OptimizerRule::kCame:
      return;  // of whole tensors: update_factored.cc
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
