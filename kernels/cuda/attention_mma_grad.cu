// The gradient of attention on bf16 matrix instructions.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_mma_grad.cuh"

namespace terrace::kernels::cuda {

Status AttentionGradMma(const AttentionArguments& a, const Context& context) {
  return GradOf<BF16>(a, context);
}

}  // namespace terrace::kernels::cuda
