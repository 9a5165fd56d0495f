// Stands for NVIDIA's <cuda_runtime.h> where kernels are compiled as host code: the words of CUDA
// C++ that they use, executed by simt.h.
//
// Only in the include path of this folder's tests. Thread rule: as simt.h.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <math.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "tests/unit/kernels/cuda/simt/cuda_runtime_api.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "tests/unit/kernels/cuda/simt/hopper.h"
#include "tests/unit/kernels/cuda/simt/simt.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

inline void __syncthreads() { terrace::simt::SyncBlock(); }
inline void __syncwarp() { terrace::simt::SyncWarp(); }

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return terrace::simt::FromLane(value, static_cast<unsigned>(lane));
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return terrace::simt::FromLane(value, terrace::simt::Lane() ^ static_cast<unsigned>(mask));
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  const uint32_t mine = predicate ? 1 : 0;
  const unsigned char* all = terrace::simt::Exchange(&mine, sizeof(mine));
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    bits |= static_cast<unsigned>(all[lane * terrace::simt::kExchangeBytes]) << lane;
  }
  return bits;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }

inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
  return std::exchange(*at, std::min(*at, value));
}

// The arguments are copied, as CUDA does: what they were when the kernel was launched.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  return terrace::simt::Enqueue(config->stream, [config = *config, kernel, values] {
    terrace::simt::Run(config.gridDim, config.blockDim, config.dynamicSmemBytes,
                       [&] { std::apply(kernel, values); });
  });
}
