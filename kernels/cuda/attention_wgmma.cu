// Attention forward on sm_90a, of bf16.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_wgmma_forward.cuh"

namespace terrace::kernels::cuda {

Status AttentionWgmma(const AttentionArguments& a, const Context& context) {
  return ByHeadSize<BF16>(a, context);
}

}  // namespace terrace::kernels::cuda
