// What lies in the workspace of the fused LM head: one chunk of logits, a few numbers a row, a row
// of exponentials for each thread, and the scratch of the matrix products.
//
// Read by kernels/gemm_workspace.cc (how large) and kernels/cpu/lm_head_loss.cc (where).
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace terrace::kernels {

struct LmHeadScratch {
  static constexpr int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  static constexpr DType TypeOf(MatmulPrecision precision) {
    if (precision == MatmulPrecision::kF16) return DType::kF16;
    return precision == MatmulPrecision::kBF16 ? DType::kBF16 : DType::kF32;
  }

  LmHeadScratch(int64_t chunk_rows, int64_t vocab, MatmulPrecision precision, int threads)
      // Logits are as exact as the product that they come from.
      : logits_type(TypeOf(precision)),
        logits_bytes(RoundUp(chunk_rows * vocab * SizeOf(logits_type))),
        losses_bytes(RoundUp(chunk_rows * static_cast<int64_t>(sizeof(double)))),
        row_bytes(
            logits_type == DType::kF32 ? 0 : RoundUp(vocab * static_cast<int64_t>(sizeof(float)))),
        bytes(logits_bytes + losses_bytes + threads * row_bytes) {}

  DType logits_type;
  int64_t logits_bytes;
  int64_t losses_bytes;
  int64_t row_bytes;  // of one thread; f32 logits need none
  int64_t bytes;      // before the scratch of the products
};

}  // namespace terrace::kernels
