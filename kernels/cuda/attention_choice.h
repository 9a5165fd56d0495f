// Which arithmetic computes an attention op: host arithmetic on what the operands and the device
// are.
//
// kWgmma is sm_90a's own (wgmma and TMA) and wanted only where it is asked for: it has not run on a
// GPU yet. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace terrace::kernels::cuda {

enum class AttentionPath { kF32, kMma, kWgmma };

struct AttentionFacts {
  MatmulPrecision precision = MatmulPrecision::kF32;
  int64_t head_dim = 0;
  float scale = 0;
  bool documents = false;  // sequences hold several
  bool terms = false;      // scores are changed, or elements of the softmax dropped
  // Those read by tiles are of the products' type with rows of whole, aligned 16 bytes.
  bool wide = false;
  int64_t longest_stride_bytes = 0;  // from one sequence to the next
  bool wgmma = false;                // the device has it, and it is wanted
};
AttentionPath ChooseAttention(const AttentionFacts& facts);

// What TERRACE_CUDA_ATTENTION says; null: nothing. "wgmma": sm_90a's own where the device has it;
// else the matrix instructions that every device has.
bool WantsWgmma(const char* setting);

}  // namespace terrace::kernels::cuda
