// The gradient of attention by keys on sm_90a, of f16.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_wgmma_key_grad.cuh"

namespace terrace::kernels::cuda {

Status AttentionKeyGradWgmmaF16(const AttentionArguments& a, const Context& context) {
  return ByHeadSize<F16>(a, context);
}

}  // namespace terrace::kernels::cuda
