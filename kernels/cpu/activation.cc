// GELU (tanh form), SwiGLU and their gradients.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/gelu-inl.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

void GeluTile(const Tile& tile) {
  ByType(tile.dtype[0], [&](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* x = tile.as<T>(0);
    T* y = tile.as<T>(1);
    constexpr bool kRough = std::is_same_v<T, BF16>;
    ForVectors(tile.count, [&](int64_t i, auto access) HWY_ATTR {
      const V v = GeluOf<kRough>(access.Load(x + i));
      access.Store(kRough ? FlushSubnormal(v) : v, y + i);
    });
  });
}

void GeluGradTile(const Tile& tile) {
  ByType(tile.dtype[0], [&](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* dy = tile.as<T>(0);
    const T* x = tile.as<T>(1);
    T* dx = tile.as<T>(2);
    ForVectors(tile.count, [&](int64_t i, auto access) HWY_ATTR {
      // Beyond +-30 the slope is 1 or 0 to the last bit. A NaN passes: Min and Max return their
      // second argument for it.
      const V inside =
          hn::Max(hn::Set(D(), -30.0f), hn::Min(hn::Set(D(), 30.0f), access.Load(x + i)));
      const V slope = GeluSlope<std::is_same_v<T, BF16>>(inside);
      access.Store(hn::Mul(access.Load(dy + i), slope), dx + i);
    });
  });
}

void SwigluTile(const Tile& tile) {
  ByType(tile.dtype[0], [&](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* gate = tile.as<T>(0);
    const T* up = tile.as<T>(1);
    T* y = tile.as<T>(2);
    ForVectors(tile.count, [&](int64_t i, auto access) HWY_ATTR {
      const V g = access.Load(gate + i);
      const V silu = hn::Mul(g, Sigmoid(g).sigmoid);
      access.Store(hn::Mul(silu, access.Load(up + i)), y + i);
    });
  });
}

void SwigluGradTile(const Tile& tile) {
  ByType(tile.dtype[0], [&](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* dy = tile.as<T>(0);
    const T* gate = tile.as<T>(1);
    const T* up = tile.as<T>(2);
    T* dgate = tile.as<T>(3);
    T* dup = tile.as<T>(4);
    ForVectors(tile.count, [&](int64_t i, auto access) HWY_ATTR {
      const V g = access.Load(gate + i);
      const V u = access.Load(up + i);
      const V dv = access.Load(dy + i);
      const SigmoidParts s = Sigmoid(g);
      // silu' = s + g s (1 - s)
      const V ss = hn::Mul(hn::Mul(s.sigmoid, s.sigmoid), s.exp_minus);
      const V slope = hn::MulAdd(g, ss, s.sigmoid);
      access.Store(hn::Mul(hn::Mul(dv, u), slope), dgate + i);
      access.Store(hn::Mul(dv, hn::Mul(g, s.sigmoid)), dup + i);
    });
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(GeluTile);
HWY_EXPORT(GeluGradTile);
HWY_EXPORT(SwigluTile);
HWY_EXPORT(SwigluGradTile);

Status Gelu(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  ForEachTile(operands, context.threads, [](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(GeluTile)(tile);
  });
  return {};
}

Status GeluGrad(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  ForEachTile(operands, context.threads, [](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(GeluGradTile)(tile);
  });
  return {};
}

Status Swiglu(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  ForEachTile(operands, context.threads, [](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(SwigluTile)(tile);
  });
  return {};
}

Status SwigluGrad(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  ForEachTile(operands, context.threads, [](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(SwigluGradTile)(tile);
  });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
