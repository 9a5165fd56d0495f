// Starting kernels, and what they all use: operands as kernels see them, packs of elements, sums
// over a block in one fixed order.
//
// Compiled by nvcc; the tests also compile the kernels as host code, with a <cuda_runtime.h> of
// their own that executes a block's threads one after another (tests/unit/kernels/cuda/simt).
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/bf16.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/f16.h"
#include "kernels/cuda/launch_shape.h"

namespace terrace::kernels::cuda {

inline Status CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return {std::string("cuda: ") + what + ": " + cudaGetErrorString(error)};
}

// Starts `kernel` on the context's stream.
template <typename... Parameters, typename... Arguments>
Status Launch(const char* what, void (*kernel)(Parameters...), const LaunchShape& shape,
              const Context& context, Arguments&&... arguments) {
  constexpr int64_t kSharedWithoutAsking = 48 << 10;
  if (shape.shared_bytes > kSharedWithoutAsking) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return CheckCuda(error, what);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.grid_x), static_cast<unsigned>(shape.grid_y));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = context.stream;
  return CheckCuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...),
                   what);
}

// An operand inside a kernel; `data` is null where it is absent.
struct Operand {
  void* data;
  int64_t row_stride;  // elements
  bool bf16;
  bool f16 = false;  // neither: f32

  __device__ float Load(int64_t row, int64_t column) const {
    const int64_t at = row * row_stride + column;
    if (f16) return ToFloat(static_cast<const F16*>(data)[at]);
    return bf16 ? ToFloat(static_cast<const BF16*>(data)[at]) : static_cast<const float*>(data)[at];
  }
  __device__ void Store(int64_t row, int64_t column, float value) const {
    const int64_t at = row * row_stride + column;
    if (bf16) {
      static_cast<BF16*>(data)[at] = ToBF16(value);
    } else if (f16) {
      static_cast<F16*>(data)[at] = ToF16(value);
    } else {
      static_cast<float*>(data)[at] = value;
    }
  }
};

inline Operand OperandOf(const TensorView& view) {
  return {view.absent() ? nullptr : view.data, view.row_stride, view.dtype == DType::kBF16,
          view.dtype == DType::kF16};
}

// The sum (or the largest) of what the block's threads bring, the same in each of them. A tree of
// fixed shape: warps first, then the warps' results in order. blockDim.x is a multiple of 32.
struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename T, typename Combine>
__device__ T BlockReduce(T value, T neutral, Combine combine) {
  __shared__ T warps[32];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  const int count = static_cast<int>(blockDim.x) / kWarp;
  if (count == 1) return value;
  __syncthreads();  // the last reduction's results have been read
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  T total = neutral;
  for (int w = 0; w < count; ++w) total = combine(total, warps[w]);
  return total;
}

template <typename T>
__device__ T BlockSum(T value) {
  return BlockReduce(value, T{0}, Plus());
}

// Notes a bad index; the first position wins, whatever the order of threads.
__device__ inline void NoteFault(Fault* faults, Op op, int64_t position) {
  atomicMin(faults, static_cast<Fault>(op) << kFaultPositionBits | static_cast<Fault>(position));
}

}  // namespace terrace::kernels::cuda
