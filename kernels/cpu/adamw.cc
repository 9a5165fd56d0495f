// AdamW, fused: one sweep that reads and writes each of param, m and v once. Bound by memory, not
// by arithmetic.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <atomic>

#include "hwy/highway.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
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

// Two vectors, a cache line of AVX2, of each stream at a time, and what was loaded last is stored
// first. Buffers a power of two apart may share one place in the first-level cache (Zen: 256 MiB
// and more): there each change of the stream fetches the line again, and this order changes least,
// at twice the speed. Elsewhere it costs nothing. Stores are plain: their lines have just been
// read, and streaming stores evict them first.
void AdamwTile(const Tile& tile, const AdamwStep& shared_step) {
  const AdamwStep step = shared_step;  // a copy that no store can change
  const float* grad = tile.as<const float>(0);
  float* param = tile.as<float>(1);
  float* m = tile.as<float>(2);
  float* v = tile.as<float>(3);
  const int64_t count = tile.count;
  const int64_t lanes = hn::Lanes(D());
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const V g0 = LoadVector(grad + i), g1 = LoadVector(grad + i + lanes);
    const V param0 = LoadVector(param + i), param1 = LoadVector(param + i + lanes);
    const V m0 = LoadVector(m + i), m1 = LoadVector(m + i + lanes);
    const V v0 = LoadVector(v + i), v1 = LoadVector(v + i + lanes);
    std::atomic_signal_fence(std::memory_order_acq_rel);  // the compiler keeps the order, too
    const State new0 = Update(step, g0, {param0, m0, v0});
    const State new1 = Update(step, g1, {param1, m1, v1});
    StoreVector(new0.v, v + i);
    StoreVector(new1.v, v + i + lanes);
    StoreVector(new0.m, m + i);
    StoreVector(new1.m, m + i + lanes);
    StoreVector(new0.param, param + i);
    StoreVector(new1.param, param + i + lanes);
  }
  ForVectors(count - i, [=](int64_t j, auto access) HWY_ATTR {
    const int64_t k = i + j;
    const State updated = Update(step, access.Load(grad + k),
                                 {access.Load(param + k), access.Load(m + k), access.Load(v + k)});
    access.Store(updated.v, v + k);
    access.Store(updated.m, m + k);
    access.Store(updated.param, param + k);
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
