// SPDX-License-Identifier: Apache-2.0
#include "proto/program/head_shards.h"

namespace terrace {
namespace {

using kernels::OpAttrs;

kernels::ScoreTerms* ScoreTermsOf(OpAttrs* attrs) {
  if (auto* a = std::get_if<kernels::AttentionAttrs>(attrs)) return &a->terms;
  if (auto* a = std::get_if<kernels::AttentionBlockAttrs>(attrs)) return &a->terms;
  return nullptr;
}

// Ranks of a context that heads of one tensor-parallel rank are dealt to.
int64_t ContextShards(const v1::Grid& grid, const OpAttrs& attrs) {
  return std::holds_alternative<kernels::AttentionAttrs>(attrs) ? AxisSize(grid, v1::CONTEXT) : 1;
}

}  // namespace

void ResolveHeads(const v1::Grid& grid, const Coordinates& rank, int64_t heads, OpAttrs* attrs) {
  kernels::ScoreTerms* terms = ScoreTermsOf(attrs);
  if (terms == nullptr) return;
  const int64_t context = ContextShards(grid, *attrs);
  terms->first_head = (rank.tensor * context + (context > 1 ? rank.context : 0)) * heads;
}

bool HasAllHeads(const v1::Grid& grid, int64_t heads, OpAttrs attrs) {
  const kernels::ScoreTerms* terms = ScoreTermsOf(&attrs);
  const int64_t shards = AxisSize(grid, v1::TENSOR) * ContextShards(grid, attrs);
  return terms == nullptr || terms->alibi_heads == 0 || terms->alibi_heads == heads * shards;
}

}  // namespace terrace
