// GELU (tanh form), SwiGLU and their gradients.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.h"

namespace terrace::kernels::cuda {
namespace {

struct GeluOp {  // x, y
  static constexpr int kIn = 0b01, kOut = 0b10;
  __device__ void Apply(float* e, int64_t) const { e[1] = Gelu(e[0]); }
};

struct GeluGradOp {  // dy, x, dx
  static constexpr int kIn = 0b011, kOut = 0b100;
  __device__ void Apply(float* e, int64_t) const { e[2] = e[0] * GeluSlope(e[1]); }
};

struct SwigluOp {  // gate, up, y
  static constexpr int kIn = 0b011, kOut = 0b100;
  __device__ void Apply(float* e, int64_t) const { e[2] = Swiglu(e[0], e[1]); }
};

struct SwigluGradOp {  // dy, gate, up, dgate, dup
  static constexpr int kIn = 0b00111, kOut = 0b11000;
  __device__ void Apply(float* e, int64_t) const {
    const SwigluSlopes slopes = SwigluGradient(e[0], e[1], e[2]);
    e[3] = slopes.gate;
    e[4] = slopes.up;
  }
};

}  // namespace

Status Gelu(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  return LaunchElements("gelu", operands, GeluOp(), context);
}

Status GeluGrad(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  return LaunchElements("gelu_grad", operands, GeluGradOp(), context);
}

Status Swiglu(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  return LaunchElements("swiglu", operands, SwigluOp(), context);
}

Status SwigluGrad(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  return LaunchElements("swiglu_grad", operands, SwigluGradOp(), context);
}

}  // namespace terrace::kernels::cuda
