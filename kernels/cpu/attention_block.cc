// kAttentionBlock and kAttentionBlockGrad.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/kernels.h"

namespace terrace::kernels::cpu {

Status AttentionBlock(const OpAttrs&, std::span<const TensorView>, const Context&) {
  return {"attention_block: this build has no kernel for it"};
}

Status AttentionBlockGrad(const OpAttrs&, std::span<const TensorView>, const Context&) {
  return {"attention_block_grad: this build has no kernel for it"};
}

}  // namespace terrace::kernels::cpu
