// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_workspace.h"

#include <algorithm>

#include "kernels/token_pieces.h"

namespace terrace::kernels {
namespace {

constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Keys and values, then one query block: its queries in two forms, scores, probabilities, output
// and statistics.
int64_t ForwardBytes(const AttentionScratch& s) {
  const int64_t packed = 2 * s.keys * s.head_dim + 2 * kAttentionQueryBlock * s.head_dim +
                         kAttentionKeyBlock * kAttentionQueryBlock;
  const int64_t f32 = (kAttentionKeyBlock + s.head_dim + 4) * kAttentionQueryBlock;
  return packed * s.element_bytes + f32 * 4;
}

// Three forms of keys and values, four of queries and output gradients, three f32 gradients, two
// statistics, and the probabilities and score gradients of one block.
int64_t BackwardBytes(const AttentionScratch& s) {
  const int64_t block = kAttentionGradBlock * kAttentionGradBlock;
  const int64_t packed = 7 * s.keys * s.head_dim + 3 * block;
  const int64_t f32 = 3 * s.keys * s.head_dim + 2 * s.keys + 2 * block;
  return packed * s.element_bytes + f32 * 4;
}

}  // namespace

AttentionScratch AttentionScratchSizes(Op op, const AttentionAttrs& attrs, int64_t head_dim,
                                       int64_t keys) {
  AttentionScratch s;
  s.keys = RoundUp(keys == 0 ? attrs.sequence : keys, kAttentionPad);
  s.head_dim = RoundUp(head_dim, kAttentionPad);
  // f32 values as three bf16 parts take 6 bytes; values rounded to bf16 take 4 where the CPU
  // computes in f32, as it always does of f16.
  const bool half =
      attrs.precision == MatmulPrecision::kBF16 || attrs.precision == MatmulPrecision::kF16;
  s.element_bytes = half ? 4 : 6;
  const bool forward =
      op == Op::kAttention || op == Op::kAttentionBlock || op == Op::kAttentionCached;
  if (forward && attrs.window > 0) {
    const int64_t seen = attrs.window + kAttentionQueryChunk + kAttentionPad;
    s.keys = std::min(s.keys, RoundUp(seen, kAttentionPad));
  }
  // Each piece starts aligned.
  const int64_t bytes = forward ? ForwardBytes(s) : BackwardBytes(s);
  s.bytes = RoundUp(bytes, kAlignment) + 16 * kAlignment;
  return s;
}

CachedAttentionScratch::CachedAttentionScratch(const AttentionAttrs& attrs,
                                               std::span<const TensorShape> operands, int threads)
    : one_by_one(attrs.sequence <= kDecodeTokens) {
  constexpr int kQ = 0, kKeys = 3;
  constexpr int64_t kFloat = sizeof(float);
  const TensorShape& q = operands[kQ];
  const int64_t heads = q.size[1], head_dim = q.size[2];
  if (one_by_one) {
    // Queries, outputs, their statistics and the scores of a block of keys.
    const int64_t group = heads / operands[kKeys].size[2];
    thread_bytes = 2 * RoundUp(group * head_dim * kFloat, kAlignment) +
                   2 * RoundUp(group * kFloat, kAlignment) + kDecodeKeys * kFloat;
    bytes = threads * thread_bytes;
    return;
  }
  thread_bytes =
      AttentionScratchSizes(Op::kAttentionCached, attrs, head_dim, operands[kKeys].size[1]).bytes;
  bytes = threads * thread_bytes + RoundUp(q.size[0] * heads * kFloat, kAlignment);
}

AttentionAttrs PieceAttrs(const AttentionBlockAttrs& attrs) {
  return {.sequence = QueryPieces(attrs).length,
          .window = attrs.window,
          .scale = attrs.scale,
          .precision = attrs.precision,
          .terms = attrs.terms};
}

int64_t AttentionWorkspaceBytes(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands,
                                int threads) {
  if (op == Op::kAttentionCached)
    return CachedAttentionScratch(std::get<AttentionAttrs>(attrs), operands, threads).bytes;
  const auto* block = std::get_if<AttentionBlockAttrs>(&attrs);
  const AttentionAttrs piece =
      block == nullptr ? std::get<AttentionAttrs>(attrs) : PieceAttrs(*block);
  return AttentionScratchSizes(op, piece, operands[0].size[2]).bytes * threads;
}

}  // namespace terrace::kernels
