// kAttentionGrad: one task for each kv head of each sequence, so that the sums of dk and dv over
// the query heads that share it have one fixed order (attention.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/kernels.h"
#include "kernels/token_pieces.h"

namespace terrace::kernels::cpu {

Status RunAttentionGrad(const AttentionEngine& engine, const AttentionAttrs& attrs,
                        std::span<const TensorView> operands, const Context& context) {
  if (!(attrs.scale > 0)) return {"attention_grad: attribute scale must be positive"};
  AttentionProblem problem(Op::kAttentionGrad, attrs, attrs.sequence, operands[0], operands[1]);
  problem.starts = StartsOf(operands, 9);
  problem.numbers = NumbersOf(operands, 10, problem.batch);
  if (context.workspace_bytes < problem.scratch.bytes * context.threads) {
    return {"attention_grad: the workspace is smaller than WorkspaceBytes for this thread count"};
  }
  const AttentionOperands io{.q = operands[0],
                             .k = operands[1],
                             .v = operands[2],
                             .o = operands[3],
                             .lse = operands[4],
                             .d_o = operands[5],
                             .dq = operands[6],
                             .dk = operands[7],
                             .dv = operands[8]};
  const int64_t tasks = problem.batch * problem.kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(context.threads)
  for (int64_t i = 0; i < tasks; ++i) {
    const AttentionTask task{.sequence_index = i / problem.kv_heads,
                             .kv_head = i % problem.kv_heads,
                             .first_query = 0,
                             .end_query = attrs.sequence};
    engine.backward(problem.OfSequence(task.sequence_index), io, task,
                    Scratch(context.workspace + omp_get_thread_num() * problem.scratch.bytes));
  }
  return {};
}

Status AttentionGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                     const Context& context) {
  const auto& attributes = std::get<AttentionAttrs>(attrs);
  return RunAttentionGrad(FindAttentionEngine(attributes.precision, operands[0].dtype), attributes,
                          operands, context);
}

}  // namespace terrace::kernels::cpu
