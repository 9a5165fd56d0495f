// cuBLASLt as the library of matrix products.
//
// In: products of gemm.h. For each call it asks cuBLASLt for its best algorithm, which costs the
// host some microseconds and nothing on the device; a captured graph pays it once. TF32 stays off.
// Owns its handle. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/cuda/gemm.h"

namespace terrace::kernels::cuda {

// An error with the reason where cuBLASLt does not start. REQUIRES: a current device.
Status MakeCublasGemms(std::unique_ptr<GemmLibrary>* library);

}  // namespace terrace::kernels::cuda
