// Attention forward on f16 matrix instructions.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_mma_forward.cuh"

namespace terrace::kernels::cuda {

Status AttentionMmaF16(const AttentionArguments& a, const Context& context) {
  return ForwardOf<F16>(a, context);
}

}  // namespace terrace::kernels::cuda
