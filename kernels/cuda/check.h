// What a call of the CUDA runtime says, as a status. For files of this folder alone: it names
// CUDA's types.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/kernel.h"

namespace terrace::kernels::cuda {

inline Status Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return {std::string("cuda: ") + what + ": " + cudaGetErrorString(error)};
}

}  // namespace terrace::kernels::cuda
