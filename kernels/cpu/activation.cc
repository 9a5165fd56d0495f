// Activations (GELU in its two forms, ReLU, SiLU), gated linear units of them, and the gradients.
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
#include "kernels/op.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// f(x) and f'(x).
struct ValueAndSlope {
  V value;
  V slope;
};

// Each activation: its value, and both. A NaN passes.
template <bool kRough>
struct TanhGelu {
  static HWY_INLINE V Value(V x) {
    const V y = GeluOf<kRough>(x);
    return kRough ? FlushSubnormal(y) : y;
  }
  static HWY_INLINE ValueAndSlope Both(V x) { return {Value(x), GeluSlope<kRough>(Inside(x))}; }
};

struct ErfGelu {
  // Below -30 what lies below x is no smaller than at -30, and must not grow by x.
  static HWY_INLINE V Above(V x) { return hn::Max(hn::Set(D(), -30.0f), x); }
  static HWY_INLINE V Value(V x) { return hn::Mul(Above(x), NormalPartsOf(Inside(x)).below); }
  static HWY_INLINE ValueAndSlope Both(V x) {
    const V inside = Inside(x);
    const NormalParts parts = NormalPartsOf(inside);
    return {hn::Mul(Above(x), parts.below), hn::MulAdd(inside, parts.density, parts.below)};
  }
};

struct Relu {
  static HWY_INLINE V Value(V x) {
    const V zero = hn::Zero(D());
    return hn::IfThenElse(hn::Lt(x, zero), zero, x);
  }
  static HWY_INLINE ValueAndSlope Both(V x) {
    const V zero = hn::Zero(D());
    const V slope = hn::IfThenElse(hn::IsNaN(x), x, hn::Set(D(), 1.0f));
    return {Value(x), hn::IfThenElse(hn::Le(x, zero), zero, slope)};
  }
};

struct Silu {
  static HWY_INLINE V Value(V x) { return hn::Mul(x, Sigmoid(x).sigmoid); }
  static HWY_INLINE ValueAndSlope Both(V x) {
    const SigmoidParts s = Sigmoid(x);
    // s + x s (1 - s)
    const V ss = hn::Mul(hn::Mul(s.sigmoid, s.sigmoid), s.exp_minus);
    return {hn::Mul(x, s.sigmoid), hn::MulAdd(x, ss, s.sigmoid)};
  }
};

// Calls f with the element type of `dtype` and the activation for it.
template <typename F>
HWY_INLINE void ByTypeAndActivation(DType dtype, Activation activation, const F& f) {
  ByType(dtype, [&](auto* type) HWY_ATTR {
    constexpr bool kRough = std::is_same_v<std::remove_pointer_t<decltype(type)>, BF16>;
    switch (activation) {
      case Activation::kGeluTanh:
        return f(type, TanhGelu<kRough>());
      case Activation::kGelu:
        return f(type, ErfGelu());
      case Activation::kRelu:
        return f(type, Relu());
      case Activation::kSilu:
        return f(type, Silu());
    }
  });
}

void GeluTile(const Tile& tile, Activation activation) {
  ByTypeAndActivation(tile.dtype[0], activation, [&](auto* type, auto kind) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* x = tile.as<T>(0);
    T* y = tile.as<T>(1);
    ForVectors(tile.count, [&](int64_t i, auto access)
                               HWY_ATTR { access.Store(kind.Value(access.Load(x + i)), y + i); });
  });
}

void GeluGradTile(const Tile& tile, Activation activation) {
  ByTypeAndActivation(tile.dtype[0], activation, [&](auto* type, auto kind) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* dy = tile.as<T>(0);
    const T* x = tile.as<T>(1);
    T* dx = tile.as<T>(2);
    ForVectors(tile.count, [&](int64_t i, auto access) HWY_ATTR {
      const V slope = kind.Both(access.Load(x + i)).slope;
      access.Store(hn::Mul(access.Load(dy + i), slope), dx + i);
    });
  });
}

void SwigluTile(const Tile& tile, Activation activation) {
  ByTypeAndActivation(tile.dtype[0], activation, [&](auto* type, auto kind) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* gate = tile.as<T>(0);
    const T* up = tile.as<T>(1);
    T* y = tile.as<T>(2);
    ForVectors(tile.count, [&](int64_t i, auto access) HWY_ATTR {
      const V value = kind.Value(access.Load(gate + i));
      access.Store(hn::Mul(value, access.Load(up + i)), y + i);
    });
  });
}

void SwigluGradTile(const Tile& tile, Activation activation) {
  ByTypeAndActivation(tile.dtype[0], activation, [&](auto* type, auto kind) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* dy = tile.as<T>(0);
    const T* gate = tile.as<T>(1);
    const T* up = tile.as<T>(2);
    T* dgate = tile.as<T>(3);
    T* dup = tile.as<T>(4);
    ForVectors(tile.count, [&](int64_t i, auto access) HWY_ATTR {
      const ValueAndSlope gated = kind.Both(access.Load(gate + i));
      const V u = access.Load(up + i);
      const V dv = access.Load(dy + i);
      access.Store(hn::Mul(hn::Mul(dv, u), gated.slope), dgate + i);
      access.Store(hn::Mul(dv, gated.value), dup + i);
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

namespace {

Activation ActivationOf(const OpAttrs& attrs) {
  return std::get<ActivationAttrs>(attrs).activation;
}

}  // namespace

Status Gelu(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const Activation activation = ActivationOf(attrs);
  ForEachTile(operands, context.threads, [activation](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(GeluTile)(tile, activation);
  });
  return {};
}

Status GeluGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                const Context& context) {
  const Activation activation = ActivationOf(attrs);
  ForEachTile(operands, context.threads, [activation](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(GeluGradTile)(tile, activation);
  });
  return {};
}

Status Swiglu(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const Activation activation = ActivationOf(attrs);
  ForEachTile(operands, context.threads, [activation](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(SwigluTile)(tile, activation);
  });
  return {};
}

Status SwigluGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                  const Context& context) {
  const Activation activation = ActivationOf(attrs);
  ForEachTile(operands, context.threads, [activation](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(SwigluGradTile)(tile, activation);
  });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
