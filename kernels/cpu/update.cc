// The optimizer's update, fused: one sweep that reads and writes each of param, m and v once. Bound
// by memory, not by arithmetic; that of bf16 weights makes its random bits on the way, some two
// instructions an element.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <atomic>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/update-inl.h"
#include "kernels/cpu/update.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// Two vectors, a cache line of AVX2, of each stream at a time, and what was loaded last is stored
// first. Buffers a power of two apart may share one place in the first-level cache (Zen: 256 MiB
// and more): there each change of the stream fetches the line again, and this order changes least,
// at twice the speed. Elsewhere it costs nothing. Stores are plain: their lines have just been
// read, and streaming stores evict them first.
template <typename Rule, typename Grad, typename Moment>
void TypedTile(const Tile& tile, const UpdateStep& shared_step) {
  const UpdateStep step = shared_step;  // a copy that no store can change
  const Grad* grad = tile.as<const Grad>(0);
  float* param = tile.as<float>(1);
  Moment* m = tile.as<Moment>(2);
  Moment* v = tile.as<Moment>(3);
  constexpr bool kFirst = Rule::kMoments > 0, kSecond = Rule::kMoments > 1;
  const int64_t count = tile.count;
  const int64_t lanes = hn::Lanes(D());
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const V g0 = LoadVector(grad + i), g1 = LoadVector(grad + i + lanes);
    State old0 = {}, old1 = {};
    old0.param = LoadVector(param + i), old1.param = LoadVector(param + i + lanes);
    if constexpr (kFirst) old0.m = LoadVector(m + i), old1.m = LoadVector(m + i + lanes);
    if constexpr (kSecond) old0.v = LoadVector(v + i), old1.v = LoadVector(v + i + lanes);
    std::atomic_signal_fence(std::memory_order_acq_rel);  // the compiler keeps the order, too
    const State new0 = Update<Rule::kValue>(step, g0, old0);
    const State new1 = Update<Rule::kValue>(step, g1, old1);
    if constexpr (kSecond) StoreVector(new0.v, v + i), StoreVector(new1.v, v + i + lanes);
    if constexpr (kFirst) StoreVector(new0.m, m + i), StoreVector(new1.m, m + i + lanes);
    StoreVector(new0.param, param + i);
    StoreVector(new1.param, param + i + lanes);
  }
  ForVectors(count - i, [=](int64_t j, auto access) HWY_ATTR {
    const int64_t k = i + j;
    State old = {};
    old.param = access.Load(param + k);
    if constexpr (kFirst) old.m = access.Load(m + k);
    if constexpr (kSecond) old.v = access.Load(v + k);
    const State updated = Update<Rule::kValue>(step, access.Load(grad + k), old);
    if constexpr (kSecond) access.Store(updated.v, v + k);
    if constexpr (kFirst) access.Store(updated.m, m + k);
    access.Store(updated.param, param + k);
  });
}

void UpdateTile(const Tile& tile, OptimizerRule rule, const UpdateStep& step) {
  ByRule(rule, [&](auto is) HWY_ATTR {
    ByType(tile.dtype[0], [&](auto* type) HWY_ATTR {
      using Grad = std::remove_pointer_t<decltype(type)>;
      using Rule = decltype(is);
      if (Rule::kMoments > 0 && tile.dtype[2] == DType::kBF16)
        return TypedTile<Rule, Grad, BF16>(tile, step);
      TypedTile<Rule, Grad, float>(tile, step);
    });
  });
}

// ---- stochastic rounding ------------------------------------------------------------------------

// The bits of all elements of a tile; zeros where there is padding.
void FillTileBits(const TileRounding& rounding, int64_t count, uint16_t* bits) {
  std::memset(bits, 0, count * sizeof(uint16_t));
  const int64_t begin = rounding.position, end = begin + count;
  for (const RoundingPart& part : rounding.parts) {
    int64_t row = begin <= part.begin ? 0 : (begin - part.begin) / part.row_stride;
    for (; row < part.rows; ++row) {
      const int64_t start = part.begin + row * part.row_stride;
      if (start >= end) break;
      const int64_t from = std::max(start, begin), to = std::min(start + part.columns, end);
      if (from >= to) continue;
      FillRandomBits(part.key, rounding.step, /*base=*/0,
                     part.first + row * part.tensor_stride + from - start, to - from,
                     bits + (from - begin));
    }
  }
}

// RoundStochastically of rounding.h; what is stored as bf16 after that is exact.
HWY_INLINE V RoundWithBits(V value, const uint16_t* bits16) {
  const D32 d32;
  const hn::Rebind<uint16_t, D> d16;
  const V32 bits = hn::BitCast(d32, value);
  const V32 carried = hn::Add(bits, hn::PromoteTo(d32, hn::LoadU(d16, bits16)));
  const V32 nan = hn::Or(bits, hn::Set(d32, 0x400000));
  const V32 rounded = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(value)), nan, carried);
  return hn::BitCast(D(), hn::And(rounded, hn::Set(d32, 0xffff0000)));
}

template <typename Rule, typename Grad, typename Moment>
void StochasticTypedTile(const Tile& tile, const UpdateStep& shared_step,
                         const TileRounding& rounding) {
  const UpdateStep step = shared_step;
  const Grad* grad = tile.as<const Grad>(0);
  BF16* param = tile.as<BF16>(1);
  Moment* m = tile.as<Moment>(2);
  Moment* v = tile.as<Moment>(3);
  constexpr bool kFirst = Rule::kMoments > 0, kSecond = Rule::kMoments > 1;
  // A vector more: the last one may reach beyond the tile.
  HWY_ALIGN uint16_t bits[kTileElements + HWY_MAX_BYTES / sizeof(float)];
  FillTileBits(rounding, tile.count, bits);
  std::memset(bits + tile.count, 0, HWY_MAX_BYTES / sizeof(float) * sizeof(uint16_t));
  ForVectors(tile.count, [=, &bits](int64_t i, auto access) HWY_ATTR {
    State old = {};
    old.param = access.Load(param + i);
    if constexpr (kFirst) old.m = access.Load(m + i);
    if constexpr (kSecond) old.v = access.Load(v + i);
    const State updated = Update<Rule::kValue>(step, access.Load(grad + i), old);
    if constexpr (kSecond) access.Store(updated.v, v + i);
    if constexpr (kFirst) access.Store(updated.m, m + i);
    access.Store(RoundWithBits(updated.param, bits + i), param + i);
  });
}

void UpdateStochasticTile(const Tile& tile, OptimizerRule rule, const UpdateStep& step,
                          const TileRounding& rounding) {
  ByRule(rule, [&](auto is) HWY_ATTR {
    ByType(tile.dtype[0], [&](auto* type) HWY_ATTR {
      using Grad = std::remove_pointer_t<decltype(type)>;
      using Rule = decltype(is);
      if (Rule::kMoments > 0 && tile.dtype[2] == DType::kBF16)
        return StochasticTypedTile<Rule, Grad, BF16>(tile, step, rounding);
      StochasticTypedTile<Rule, Grad, float>(tile, step, rounding);
    });
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(UpdateTile);
HWY_EXPORT(UpdateStochasticTile);

namespace {

// Gradient, weight and the moments that the rule keeps: those that a tile has.
std::span<const TensorView> TileOperands(OptimizerRule rule, std::span<const TensorView> operands) {
  return operands.first(2 + RowOf(rule).moments);
}

}  // namespace

bool SkipsStep(std::span<const TensorView> operands) {
  return operands[4].as<const float>()[3] != 0;
}

UpdateStep StepOf(const UpdateAttrs& update, std::span<const TensorView> operands) {
  const float* schedule = operands[5].as<const float>();
  const double learning_rate = static_cast<double>(update.lr_scale) * schedule[0];
  const double correction1 = schedule[1];
  const double correction2 = schedule[2];
  return {.grad_scale = operands[4].as<const float>()[0],
          .penalty = update.weight_decay,
          .decay = static_cast<float>(1.0 - learning_rate * update.weight_decay),
          .beta1 = update.beta1,
          .one_minus_beta1 = static_cast<float>(1.0 - update.beta1),
          .beta2 = update.beta2,
          .one_minus_beta2 = static_cast<float>(1.0 - update.beta2),
          .inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(correction2)),
          .epsilon = update.epsilon,
          .minus_step_size = static_cast<float>(-learning_rate / correction1),
          .minus_learning_rate = static_cast<float>(-learning_rate)};
}

Status Update(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  if (SkipsStep(operands)) return {};
  const auto& update = std::get<UpdateAttrs>(attrs);
  const UpdateStep step = StepOf(update, operands);
  ForEachTile(TileOperands(update.rule, operands), context.threads, [&](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(UpdateTile)(tile, update.rule, step);
  });
  return {};
}

Status UpdateStochastic(const OpAttrs& attrs, std::span<const TensorView> operands,
                        const Context& context) {
  const auto& update = std::get<UpdateAttrs>(attrs);
  if (update.rounding.parts == nullptr)
    return {"update_stochastic: nobody said whose bits it takes"};
  if (SkipsStep(operands)) return {};
  const UpdateStep step = StepOf(update, operands);
  const auto* const first = operands[1].as<const uint16_t>();
  const auto number = static_cast<uint32_t>(operands[6].as<const int32_t>()[0]);
  ForEachTile(TileOperands(update.rule, operands), context.threads, [&](const Tile& tile) {
    const TileRounding rounding = {.parts = *update.rounding.parts,
                                   .step = number,
                                   .position = tile.as<const uint16_t>(1) - first};
    HWY_DYNAMIC_DISPATCH(UpdateStochasticTile)(tile, update.rule, step, rounding);
  });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
