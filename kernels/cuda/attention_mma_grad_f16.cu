// The gradient of attention on f16 matrix instructions.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_mma_grad.cuh"

namespace terrace::kernels::cuda {

Status AttentionGradMmaF16(const AttentionArguments& a, const Context& context) {
  return GradOf<F16>(a, context);
}

}  // namespace terrace::kernels::cuda
