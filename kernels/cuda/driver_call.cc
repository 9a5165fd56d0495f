// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/driver_call.h"

#include <cuda_runtime_api.h>

namespace terrace::kernels::cuda {
namespace {

[[maybe_unused]] constexpr unsigned kSince =
    12000;  // the version of the calls: what the oldest toolkit has

}  // namespace

void* DriverCall(const char* name) {
  void* call = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &call, kSince, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &call, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? call : nullptr;
}

}  // namespace terrace::kernels::cuda
