// AdamW, fused: one sweep that reads and writes each of param, m and v once.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.h"

namespace terrace::kernels::cuda {
namespace {

struct AdamwArguments {
  Operand grad, param, m, v;
  int64_t count;
  bool wide;
  const float* scale;
  const float* schedule;
  AdamwAttrs attrs;
};

__device__ void UpdatePack(const AdamwArguments& a, const AdamwStep& step, int64_t first) {
  float grad[kPack], param[kPack], m[kPack], v[kPack];
  LoadPack(a.grad, first, grad);
  LoadPack(a.param, first, param);
  LoadPack(a.m, first, m);
  LoadPack(a.v, first, v);
#pragma unroll
  for (int i = 0; i < kPack; ++i) UpdateAdamw(step, grad[i], &param[i], &m[i], &v[i]);
  StorePack(a.param, first, param);
  StorePack(a.m, first, m);
  StorePack(a.v, first, v);
}

__device__ void UpdateElement(const AdamwArguments& a, const AdamwStep& step, int64_t i) {
  float param = a.param.Load(0, i), m = a.m.Load(0, i), v = a.v.Load(0, i);
  UpdateAdamw(step, a.grad.Load(0, i), &param, &m, &v);
  a.param.Store(0, i, param);
  a.m.Store(0, i, m);
  a.v.Store(0, i, v);
}

__global__ void __launch_bounds__(kElementThreads) AdamwKernel(AdamwArguments a) {
  if (a.scale[3] != 0) return;  // the step is skipped
  __shared__ AdamwStep step;    // its double arithmetic once a block
  if (threadIdx.x == 0) step = MakeAdamwStep(a.attrs, a.scale[0], a.schedule);
  __syncthreads();
  const int64_t packs = DivideUp(a.count, kPack);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t pack = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; pack < packs;
       pack += stride) {
    const int64_t first = pack * kPack;
    if (a.wide && first + kPack <= a.count) {
      UpdatePack(a, step, first);
      continue;
    }
    const int64_t end = first + kPack < a.count ? first + kPack : a.count;
    for (int64_t i = first; i < end; ++i) UpdateElement(a, step, i);
  }
}

}  // namespace

Status Adamw(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  AdamwArguments arguments = {.grad = OperandOf(operands[0]),
                              .param = OperandOf(operands[1]),
                              .m = OperandOf(operands[2]),
                              .v = OperandOf(operands[3]),
                              .count = operands[0].Elements(),
                              .wide = true,
                              .scale = operands[4].as<const float>(),
                              .schedule = operands[5].as<const float>(),
                              .attrs = std::get<AdamwAttrs>(attrs)};
  for (int k = 0; k < 4; ++k) arguments.wide = arguments.wide && AllowsWide(operands[k], true);
  return Launch("adamw", AdamwKernel, ElementShape(1, arguments.count), context, arguments);
}

}  // namespace terrace::kernels::cuda
