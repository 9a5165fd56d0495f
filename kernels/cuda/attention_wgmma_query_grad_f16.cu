// The gradient of attention by queries on sm_90a, of f16.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_wgmma_query_grad.cuh"

namespace terrace::kernels::cuda {

Status AttentionQueryGradWgmmaF16(const AttentionArguments& a, const Context& context) {
  return ByHeadSize<F16>(a, context);
}

}  // namespace terrace::kernels::cuda
