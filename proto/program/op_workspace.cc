// SPDX-License-Identifier: Apache-2.0
#include "proto/program/op_workspace.h"

#include "kernels/cuda/workspace.h"

namespace terrace {

int64_t WorkspaceBytes(const WorkspaceTarget& target, kernels::Op op, const kernels::OpAttrs& attrs,
                       std::span<const kernels::TensorShape> operands) {
  return target.device == "cuda" && !target.on_host
             ? kernels::cuda::WorkspaceBytes(op, attrs, operands)
             : kernels::WorkspaceBytes(op, attrs, operands, target.threads);
}

}  // namespace terrace
