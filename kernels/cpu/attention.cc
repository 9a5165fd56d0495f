// kAttention: splits the queries into tasks and lets an engine compute them (attention.h).
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/kernels.h"
#include "kernels/token_pieces.h"

namespace terrace::kernels::cpu {
namespace {

// Later queries see more keys, so their tasks come first: the last task to start is a short one.
AttentionTask TaskAt(const AttentionProblem& p, int64_t chunks, int64_t index) {
  const int64_t pairs = p.batch * p.kv_heads;
  const int64_t chunk = chunks - 1 - index / pairs;
  const int64_t pair = index % pairs;
  const int64_t first = chunk * kAttentionQueryChunk;
  return {.sequence_index = pair / p.kv_heads,
          .kv_head = pair % p.kv_heads,
          .first_query = first,
          .end_query = std::min(first + kAttentionQueryChunk, p.attrs.sequence)};
}

}  // namespace

AttentionProblem::AttentionProblem(Op op, const AttentionAttrs& attributes, int64_t rows,
                                   const TensorView& q, const TensorView& k)
    : attrs(attributes),
      rows(rows),
      key_rows(rows),
      keys(attributes.sequence),
      batch(q.size[0] / rows),
      heads(q.size[1]),
      kv_heads(k.size[1]),
      head_dim(q.size[2]),
      scratch(AttentionScratchSizes(op, attributes, q.size[2])) {}

HeadRows AttentionProblem::Rows(const TensorView& view, int64_t row, int64_t head) const {
  const int64_t offset = row * view.row_stride + head * head_dim;
  return {.data = view.as<std::byte>() + offset * SizeOf(view.dtype),
          .dtype = view.dtype,
          .row_stride = view.row_stride};
}

float* AttentionProblem::Lse(const TensorView& lse, int64_t sequence_index, int64_t head) const {
  return lse.as<float>() + sequence_index * lse.row_stride + head * rows + query_row;
}

// Tiles are of bf16 parts, which f16 is not.
AttentionEngine FindAttentionEngine(MatmulPrecision precision, DType activation) {
  const bool half = precision == MatmulPrecision::kF16 || activation == DType::kF16;
  if (half) return F32AttentionEngine();
  const bool bf16 = precision == MatmulPrecision::kBF16;
  if (AmxReady()) return TilesAttentionEngine(bf16 ? TileUnits::kAmx : TileUnits::kAmxSplit);
  return bf16 && HasBF16Vectors() ? TilesAttentionEngine(TileUnits::kVectors)
                                  : F32AttentionEngine();
}

Status RunAttention(const AttentionEngine& engine, const AttentionAttrs& attrs,
                    std::span<const TensorView> operands, const Context& context) {
  if (!(attrs.scale > 0)) return {"attention: attribute scale must be positive"};
  AttentionProblem problem(Op::kAttention, attrs, attrs.sequence, operands[0], operands[1]);
  problem.starts = StartsOf(operands, 5);
  problem.numbers = NumbersOf(operands, 6, problem.batch);
  if (context.workspace_bytes < problem.scratch.bytes * context.threads) {
    return {"attention: the workspace is smaller than WorkspaceBytes for this thread count"};
  }
  const AttentionOperands io{
      .q = operands[0], .k = operands[1], .v = operands[2], .o = operands[3], .lse = operands[4]};
  const int64_t chunks = (attrs.sequence + kAttentionQueryChunk - 1) / kAttentionQueryChunk;
  const int64_t tasks = chunks * problem.batch * problem.kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(context.threads)
  for (int64_t i = 0; i < tasks; ++i) {
    const AttentionTask task = TaskAt(problem, chunks, i);
    engine.forward(problem.OfSequence(task.sequence_index), io, task,
                   Scratch(context.workspace + omp_get_thread_num() * problem.scratch.bytes));
  }
  return {};
}

Status Attention(const OpAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context) {
  const auto& attributes = std::get<AttentionAttrs>(attrs);
  return RunAttention(FindAttentionEngine(attributes.precision, operands[0].dtype), attributes,
                      operands, context);
}

}  // namespace terrace::kernels::cpu
