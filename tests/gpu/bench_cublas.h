// The best that cuBLASLt has for a product: every algorithm that its heuristic offers is tried
// once, and the fastest is what is timed.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>

#include "kernels/kernel.h"

namespace terrace::kernels::bench {

class BestProduct {
 public:
  virtual ~BestProduct() = default;
  // Mean seconds of a call, on the device's clock.
  virtual Status Time(int calls, double* seconds) = 0;
};

// Chooses. `views` are the operands of a kMatmul without epilogue, `scratch` has kGemmLibraryBytes;
// both are used as long as the product lives.
Status FindBestProduct(const MatmulAttrs& attrs, std::span<const TensorView> views,
                       std::byte* scratch, cudaStream_t stream, std::unique_ptr<BestProduct>* best);

}  // namespace terrace::kernels::bench
