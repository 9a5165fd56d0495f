// Rotary position embedding, in place, forward or inverse.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// Rotates the first 2 * half elements of the heads of one token; `angles` holds `half` cosines,
// then as many sines.
void RotateToken(const TensorView& x, int64_t row, const float* angles, int64_t half,
                 bool inverse) {
  const V sign = hn::Set(D(), inverse ? -1.0f : 1.0f);
  ByType(x.dtype, [&](auto* type) HWY_ATTR {
    auto* head = reinterpret_cast<decltype(type)>(Address(x, row, 0));
    for (int64_t h = 0; h < x.size[1]; ++h, head += x.size[2]) {
      ForVectors(half, [=](int64_t i, auto access) HWY_ATTR {
        const V cos = access.Load(angles + i);
        const V sin = hn::Mul(sign, access.Load(angles + half + i));
        const V a = access.Load(head + i);
        const V b = access.Load(head + half + i);
        access.Store(hn::NegMulAdd(b, sin, hn::Mul(a, cos)), head + i);
        access.Store(hn::MulAdd(a, sin, hn::Mul(b, cos)), head + half + i);
      });
    }
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(RotateToken);

Status Rope(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& rope = std::get<RopeAttrs>(attrs);
  const TensorView& x = operands[0];
  const TensorView& table = operands[1];
  ParallelFor(
      x.rows(), x.size[1] * table.size[1], context.threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t position = rope.context.Position(row, rope.sequence);
          const float* angles = table.as<const float>() + position * table.size[1];
          HWY_DYNAMIC_DISPATCH(RotateToken)(x, row, angles, table.size[1] / 2, rope.inverse);
        }
      });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
