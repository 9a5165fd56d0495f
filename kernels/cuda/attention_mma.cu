// Attention forward on bf16 matrix instructions.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_mma_forward.cuh"

namespace terrace::kernels::cuda {

Status AttentionMma(const AttentionArguments& a, const Context& context) {
  return ForwardOf<BF16>(a, context);
}

}  // namespace terrace::kernels::cuda
