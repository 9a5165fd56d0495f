// Scratch bytes of a matrix product and of the fused LM head, for the op table and for kernels that
// multiply inside a larger op.
//
// The numbers depend on nothing but their arguments, so that a plan made on one machine holds on
// another: each is the largest over all code paths of the CPU backend.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace terrace::kernels {

// Scratch for any product of these sizes and precision with `threads` threads.
int64_t GemmWorkspaceBytes(int64_t m, int64_t n, int64_t k, MatmulPrecision precision, int threads);

// Scratch of an fp8 product: that of a bf16 one, and its operands, quantised, as bf16.
struct Fp8GemmScratch {
  Fp8GemmScratch(int64_t m, int64_t n, int64_t k, int threads);

  int64_t product_bytes = 0;
  int64_t a_bytes = 0, b_bytes = 0;
  int64_t bytes() const { return product_bytes + a_bytes + b_bytes; }
};

// Scratch of kLmHeadLoss, or of kLmHeadLossGrad with `grad`. `activation` is the element type of
// hidden.
int64_t LmHeadWorkspaceBytes(int64_t rows, int64_t hidden, int64_t vocab, int64_t chunk_rows,
                             bool grad, DType activation, MatmulPrecision precision, int threads);

}  // namespace terrace::kernels
