// Casts, sums, soft caps and fills of whole tensors.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.h"

namespace terrace::kernels::cuda {
namespace {

struct CastOp {  // x, y
  static constexpr int kIn = 0b01, kOut = 0b10;
  __device__ void Apply(float* e, int64_t) const { e[1] = e[0]; }
};

struct AddOp {  // x, y
  static constexpr int kIn = 0b11, kOut = 0b10;
  __device__ void Apply(float* e, int64_t) const { e[1] += e[0]; }
};

struct FillOp {  // x
  static constexpr int kIn = 0, kOut = 0b1;
  float value;
  __device__ void Apply(float* e, int64_t) const { e[0] = value; }
};

struct ScaleOp {  // x
  static constexpr int kIn = 0b1, kOut = 0b1;
  float scale;
  __device__ void Apply(float* e, int64_t) const { e[0] *= scale; }
};

struct SoftcapOp {  // x, y
  static constexpr int kIn = 0b01, kOut = 0b10;
  float softcap;
  __device__ void Apply(float* e, int64_t) const { e[1] = SoftcapOf(e[0], softcap); }
};

struct AddResidualOp {  // x, residual or zeros, y
  static constexpr int kIn = 0b011, kOut = 0b100;
  const float* bias;  // or null
  __device__ void Apply(float* e, int64_t column) const {
    e[2] = e[0] + e[1];
    if (bias != nullptr) e[2] += bias[column];
  }
};

}  // namespace

Status Cast(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  return LaunchElements("cast", operands, CastOp(), context);
}

Status Add(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  return LaunchElements("add", operands, AddOp(), context);
}

Status CheckLoads() {
  cudaFuncAttributes attributes = {};
  const auto* kernel = reinterpret_cast<const void*>(&ElementKernel<FillOp>);
  return CheckCuda(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel");
}

Status Fill(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  return LaunchElements("fill", operands, FillOp{std::get<FillAttrs>(attrs).value}, context);
}

Status Scale(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  return LaunchElements("scale", operands, ScaleOp{std::get<ScaleAttrs>(attrs).scale}, context);
}

Status Softcap(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  return LaunchElements("softcap", operands, SoftcapOp{std::get<ScaleAttrs>(attrs).scale}, context);
}

Status AddResidual(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  const TensorView same_shape[] = {operands[0], operands[1], operands[3]};
  const float* bias = operands[2].absent() ? nullptr : operands[2].as<const float>();
  return LaunchElements("add_residual", same_shape, AddResidualOp{bias}, context, bias != nullptr);
}

}  // namespace terrace::kernels::cuda
