// The best that cuBLASLt has for a product: every algorithm that its heuristic offers, timed.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/kernel.h"

namespace terrace::kernels::bench {

// Mean seconds of a call of the fastest algorithm, on the device's clock. `views` are the operands
// of a kMatmul without epilogue, `scratch` has kGemmLibraryBytes.
Status TimeBestProduct(const MatmulAttrs& attrs, std::span<const TensorView> views,
                       std::byte* scratch, cudaStream_t stream, int calls, double* seconds);

}  // namespace terrace::kernels::bench
