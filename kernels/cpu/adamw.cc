// AdamW, fused: one sweep that reads and writes each of param, m and v once. Bound by memory, not
// by arithmetic.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

void AdamwTile(const Tile& tile, const AdamwStep& step) {
  const D d;
  const V grad_scale = hn::Set(d, step.grad_scale);
  const V decay = hn::Set(d, step.decay);
  const V one_minus_beta1 = hn::Set(d, step.one_minus_beta1);
  const V beta2 = hn::Set(d, step.beta2);
  const V one_minus_beta2 = hn::Set(d, step.one_minus_beta2);
  const V inverse_sqrt_correction2 = hn::Set(d, step.inverse_sqrt_correction2);
  const V epsilon = hn::Set(d, step.epsilon);
  const V minus_step_size = hn::Set(d, step.minus_step_size);
  const float* HWY_RESTRICT grad = tile.as<const float>(0);
  float* HWY_RESTRICT param = tile.as<float>(1);
  float* HWY_RESTRICT m = tile.as<float>(2);
  float* HWY_RESTRICT v = tile.as<float>(3);
  // The order of torch.optim.AdamW: decay, lerp of m, update of v, then param += -step * m /
  // denominator.
  ForVectors(tile.count, [=](int64_t i, auto access) HWY_ATTR {
    const V g = hn::Mul(access.Load(grad + i), grad_scale);
    const V decayed = hn::Mul(access.Load(param + i), decay);
    const V m_old = access.Load(m + i);
    const V m_new = hn::MulAdd(one_minus_beta1, hn::Sub(g, m_old), m_old);
    const V v_new = hn::MulAdd(hn::Mul(one_minus_beta2, g), g, hn::Mul(access.Load(v + i), beta2));
    const V denominator = hn::MulAdd(hn::Sqrt(v_new), inverse_sqrt_correction2, epsilon);
    access.Store(hn::MulAdd(minus_step_size, hn::Div(m_new, denominator), decayed), param + i);
    access.Store(m_new, m + i);
    access.Store(v_new, v + i);
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(AdamwTile);

Status Adamw(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& adamw = std::get<AdamwAttrs>(attrs);
  const float* scale = operands[4].as<const float>();
  const float* schedule = operands[5].as<const float>();
  const bool skip = scale[3] != 0;
  if (skip) return {};
  const double learning_rate = schedule[0];
  const double correction1 = schedule[1];
  const double correction2 = schedule[2];
  const AdamwStep step = {
      .grad_scale = scale[0],
      .decay = static_cast<float>(1.0 - learning_rate * adamw.weight_decay),
      .one_minus_beta1 = static_cast<float>(1.0 - adamw.beta1),
      .beta2 = adamw.beta2,
      .one_minus_beta2 = static_cast<float>(1.0 - adamw.beta2),
      .inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(correction2)),
      .epsilon = adamw.epsilon,
      .minus_step_size = static_cast<float>(-learning_rate / correction1)};
  ForEachTile(operands.first(4), context.threads, [&step](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(AdamwTile)(tile, step);
  });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
