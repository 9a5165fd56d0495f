// Reorders the dimensions of a tensor: a thread an element of the result, so that writes are in
// order.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {
namespace {

struct PermuteArguments {
  const void* x;
  void* y;
  int64_t count;
  int64_t sizes[kMaxDims];    // of y
  int64_t strides[kMaxDims];  // of x's elements, along y's dimensions
};

template <typename T>
__global__ void __launch_bounds__(kElementThreads) PermuteKernel(PermuteArguments a) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.count;
       i += stride) {
    int64_t rest = i, from = 0;
#pragma unroll
    for (int d = kMaxDims - 1; d >= 0; --d) {
      from += rest % a.sizes[d] * a.strides[d];
      rest /= a.sizes[d];
    }
    static_cast<T*>(a.y)[i] = static_cast<const T*>(a.x)[from];
  }
}

}  // namespace

Status Permute(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& order = std::get<PermuteAttrs>(attrs).order;
  const TensorView& x = operands[0];
  PermuteArguments arguments = {.x = x.data, .y = operands[1].data, .count = x.Elements()};
  int64_t x_strides[kMaxDims];
  int64_t elements = 1;
  for (int d = kMaxDims - 1; d >= 0; --d) {
    x_strides[d] = elements;
    elements *= x.size[d];
  }
  for (int d = 0; d < kMaxDims; ++d) {
    arguments.sizes[d] = operands[1].size[d];
    arguments.strides[d] = x_strides[order[d]];
  }
  const LaunchShape shape = ElementShape(1, arguments.count * kPack);
  if (SizeOf(x.dtype) == 4) {
    return Launch("permute", PermuteKernel<uint32_t>, shape, context, arguments);
  }
  return Launch("permute", PermuteKernel<uint16_t>, shape, context, arguments);
}

}  // namespace terrace::kernels::cuda
