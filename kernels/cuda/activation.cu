// Activations (GELU in its two forms, ReLU, SiLU), gated linear units of them, and the gradients.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.h"

namespace terrace::kernels::cuda {
namespace {

template <typename Kind>
struct GeluOp {  // x, y
  static constexpr int kIn = 0b01, kOut = 0b10;
  __device__ void Apply(float* e, int64_t) const { e[1] = Kind::Value(e[0]); }
};

template <typename Kind>
struct GeluGradOp {  // dy, x, dx
  static constexpr int kIn = 0b011, kOut = 0b100;
  __device__ void Apply(float* e, int64_t) const { e[2] = e[0] * Kind::Both(e[1]).slope; }
};

template <typename Kind>
struct SwigluOp {  // gate, up, y
  static constexpr int kIn = 0b011, kOut = 0b100;
  __device__ void Apply(float* e, int64_t) const { e[2] = Kind::Value(e[0]) * e[1]; }
};

template <typename Kind>
struct SwigluGradOp {  // dy, gate, up, dgate, dup
  static constexpr int kIn = 0b00111, kOut = 0b11000;
  __device__ void Apply(float* e, int64_t) const {
    const ValueAndSlope gated = Kind::Both(e[1]);
    e[3] = e[0] * e[2] * gated.slope;
    e[4] = e[0] * gated.value;
  }
};

// Starts the op made for the activation that the attributes name.
template <template <typename> typename ElementOp>
Status LaunchActivation(const char* what, const OpAttrs& attrs,
                        std::span<const TensorView> operands, const Context& context) {
  switch (std::get<ActivationAttrs>(attrs).activation) {
    case Activation::kGelu:
      return LaunchElements(what, operands, ElementOp<ErfGelu>(), context);
    case Activation::kRelu:
      return LaunchElements(what, operands, ElementOp<Relu>(), context);
    case Activation::kSilu:
      return LaunchElements(what, operands, ElementOp<Silu>(), context);
    case Activation::kGeluTanh:
      break;
  }
  return LaunchElements(what, operands, ElementOp<TanhGelu>(), context);
}

}  // namespace

Status Gelu(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  return LaunchActivation<GeluOp>("gelu", attrs, operands, context);
}

Status GeluGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                const Context& context) {
  return LaunchActivation<GeluGradOp>("gelu_grad", attrs, operands, context);
}

Status Swiglu(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  return LaunchActivation<SwigluOp>("swiglu", attrs, operands, context);
}

Status SwigluGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                  const Context& context) {
  return LaunchActivation<SwigluGradOp>("swiglu_grad", attrs, operands, context);
}

}  // namespace terrace::kernels::cuda
