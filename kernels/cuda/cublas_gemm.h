// cuBLASLt as the library of matrix products.
//
// In: products of gemm.h. It asks cuBLASLt for the best algorithm once for products of one shape,
// types, strides and alignments, and keeps the answer, also that there is none: asking takes the
// host as long as a small product takes the device.
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
