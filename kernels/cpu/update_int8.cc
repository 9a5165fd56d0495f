// The update of rules whose moments rest in int8 blocks: each block is decoded, updated in f32 and
// encoded with its new scale while it is in the first-level cache. A code is found from the upper
// bits of the number and one comparison (dynamic_map.h).
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_int8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <bit>

#include "hwy/highway.h"
#include "kernels/cpu/codes-inl.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/update-inl.h"
#include "kernels/cpu/update.h"
#include "kernels/dynamic_map.h"
#include "kernels/format.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

template <typename Access>
HWY_INLINE V Decode(const DynamicMap& map, const uint8_t* codes, V scale, Access access) {
  return hn::Mul(hn::GatherIndex(D(), map.number, LoadCodes(codes, access)), scale);
}

// DynamicCode of dynamic_map.h.
HWY_INLINE VI Encode(const DynamicMap& map, V scaled) {
  const DI di;
  const VI key = hn::BitCast(di, hn::ShiftRight<16>(Magnitude(scaled)));
  const VI inside =
      hn::Min(hn::Max(key, hn::Set(di, DynamicMap::kFirstKey)), hn::Set(di, DynamicMap::kLastKey));
  const VI negative = hn::BroadcastSignBit(hn::BitCast(di, scaled));
  const VI place = hn::Add(hn::Sub(inside, hn::Set(di, DynamicMap::kFirstKey)),
                           hn::And(negative, hn::Set(di, DynamicMap::kKeys)));
  const VI words = hn::GatherOffset(di, reinterpret_cast<const int32_t*>(map.start), place);
  const VI start = hn::And(words, hn::Set(di, 0xff));
  const V bound = hn::GatherIndex(D(), map.bound, start);
  const auto above = hn::RebindMask(di, hn::Gt(scaled, bound));
  return hn::Sub(start, hn::VecFromMask(di, above));
}

HWY_INLINE void EncodeBlock(const DynamicMap& map, const float* numbers, float scale, int64_t count,
                            uint8_t* codes) {
  const V inverse = hn::Set(D(), InverseScale(scale));
  ForVectors(count, [&map, inverse, numbers, codes](int64_t i, auto access) HWY_ATTR {
    StoreCodes(Encode(map, hn::Mul(LoadVector(numbers + i), inverse)), codes + i, access);
  });
}

template <typename Rule, typename Grad>
void Int8TypedBlock(const Int8Block& block, const UpdateStep& shared_step) {
  const UpdateStep step = shared_step;
  const Int8Block at = block;
  constexpr bool kSecond = Rule::kMoments > 1;
  const auto* grad = static_cast<const Grad*>(at.grad);
  // A vector more: the last one may reach beyond the block.
  HWY_ALIGN float m[kInt8Block + HWY_MAX_BYTES / sizeof(float)];
  HWY_ALIGN float v[kSecond ? kInt8Block + HWY_MAX_BYTES / sizeof(float) : 1];
  const V m_scale = hn::Set(D(), *at.m_scale);
  const V v_scale = kSecond ? hn::Set(D(), *at.v_scale) : m_scale;
  VU m_most = hn::Zero(DU()), v_most = m_most;
  ForVectors(at.count, [&](int64_t i, auto access) HWY_ATTR {
    State old = {};
    old.param = access.Load(at.param + i);
    old.m = Decode(kSignedMap, at.m + i, m_scale, access);
    if constexpr (kSecond) old.v = Decode(kUnsignedMap, at.v + i, v_scale, access);
    const State updated = Update<Rule::kValue>(step, access.Load(grad + i), old);
    access.Store(updated.param, at.param + i);
    StoreVector(updated.m, m + i);
    m_most = hn::Max(m_most, Magnitude(access.Keep(updated.m)));
    if constexpr (kSecond) {
      StoreVector(updated.v, v + i);
      v_most = hn::Max(v_most, Magnitude(access.Keep(updated.v)));
    }
  });
  *at.m_scale = std::bit_cast<float>(LargestBits(m_most));
  EncodeBlock(kSignedMap, m, *at.m_scale, at.count, at.m);
  if constexpr (!kSecond) return;
  *at.v_scale = std::bit_cast<float>(LargestBits(v_most));
  EncodeBlock(kUnsignedMap, v, *at.v_scale, at.count, at.v);
}

void UpdateInt8Block(const Int8Block& block, OptimizerRule rule, const UpdateStep& step) {
  ByRule(rule, [&](auto is) HWY_ATTR {
    using Rule = decltype(is);
    if constexpr (Rule::kMoments > 0) {
      ByType(block.grad_type, [&](auto* type) HWY_ATTR {
        Int8TypedBlock<Rule, std::remove_pointer_t<decltype(type)>>(block, step);
      });
    }
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(UpdateInt8Block);

Status UpdateInt8(const OpAttrs& attrs, std::span<const TensorView> operands,
                  const Context& context) {
  if (SkipsStep(operands)) return {};
  const auto& update = std::get<UpdateAttrs>(attrs);
  const UpdateStep step = StepOf(update, operands);
  const bool second = RowOf(update.rule).moments > 1;
  const int64_t elements = operands[0].Elements(), block = update.block;
  const auto range = [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * block;
      HWY_DYNAMIC_DISPATCH(UpdateInt8Block)
      ({.grad = Address(operands[0], 0, first),
        .grad_type = operands[0].dtype,
        .param = operands[1].as<float>() + first,
        .m = operands[2].as<uint8_t>() + first,
        .v = second ? operands[3].as<uint8_t>() + first : nullptr,
        .m_scale = operands[6].as<float>() + b,
        .v_scale = second ? operands[7].as<float>() + b : nullptr,
        .count = std::min(block, elements - first)},
       update.rule, step);
    }
  };
  ParallelFor((elements + block - 1) / block, block, context.threads, range);
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
