// Backward rules of nodes that involve other ranks (autodiff.h).
//
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/compiler/layers/autodiff.h"

namespace terrace::compiler {

using kernels::DType;
using kernels::Op;

namespace {

// "gather x" and "sum x" are each other's gradients.
std::string GradientText(const std::string& text) {
  if (absl::StartsWith(text, "gather ")) return "sum d." + text.substr(7);
  if (absl::StartsWith(text, "sum ")) return "gather d." + text.substr(4);
  return text + " grad";
}

}  // namespace

void EnterTensorParallelRule(const Node& node, BackwardPass& b) {
  b.builder().AllReduce(std::get<EnterTensorParallel>(node.what).group,
                        b.activations().Of(node.operands[0]), "sum d." + node.text);
}

void CollectiveRule(const Node& node, BackwardPass& b) {
  const Collective& collective = *node.collective();
  if (collective.kind == v1::ALL_REDUCE) return;  // each rank's part has the gradient of the sum
  const Slice dy = b.activations().Of(node.operands[1]);
  const Slice dx = b.activations().New(node.operands[0]);
  const v1::CollectiveKind kind = collective.kind == v1::ALL_GATHER       ? v1::REDUCE_SCATTER
                                  : collective.kind == v1::REDUCE_SCATTER ? v1::ALL_GATHER
                                                                          : collective.kind;
  b.builder().Collective(kind, collective.group, dy, dx, GradientText(node.text));
}

// Keys and values go round once more, and their gradients with them: after the last step these are
// one rank before their own, so they are shifted once more than the keys.
void RingAttentionRule(const Node& node, BackwardPass& b) {
  const auto& ring = std::get<RingAttention>(node.what);
  const auto& [q, k, v, o, lse, own, starts, places] =
      std::tie(node.operands[0], node.operands[1], node.operands[2], node.operands[3],
               node.operands[4], node.operands[5], node.operands[6], node.operands[7]);
  Builder& builder = b.builder();
  const int64_t steps = ring.attrs.context.ranks;
  const int64_t tokens = k.shape.rows(), columns = k.shape.RowElements();
  const Dims heads = {tokens, k.shape.size[1], k.shape.size[2]};
  const auto part = [&](const Slice& pair, int64_t i) {
    return Reshape(Range(pair, i * tokens * columns, tokens * columns), heads);
  };
  const auto new_pair = [&](const char* name, int64_t step, DType dtype) {
    return builder.NewValue(absl::StrCat(name, step), v1::ACTIVATION, dtype, {2 * tokens, columns});
  };
  const Slice dout = b.activations().Of(o);
  const Slice dq = builder.NewValue("dq.sum", v1::ACTIVATION, DType::kF32,
                                    {tokens, q.shape.size[1], q.shape.size[2]});
  kernels::AttentionBlockAttrs attrs = ring.attrs;
  Slice pair = own;
  Slice dpair = new_pair("dkv.step", 0, DType::kF32);
  for (int64_t step = 0; step < steps; ++step) {
    const Slice now = pair;
    if (step + 1 < steps) {
      pair = new_pair("kv.back.step", step + 1, own.shape.dtype);
      builder.Collective(v1::RING_SHIFT, ring.group, now, pair, absl::StrCat("ring shift ", step));
    }
    attrs.step = step;
    attrs.accumulate = attrs.accumulate_keys = step > 0;
    builder.Compute(Op::kAttentionBlockGrad, attrs,
                    {q, part(now, 0), part(now, 1), o, lse, dout, dq, part(dpair, 0),
                     part(dpair, 1), starts, places},
                    absl::StrCat("attention step ", step, " grad"));
    const Slice next = new_pair("dkv.step", step + 1, DType::kF32);
    builder.Collective(v1::RING_SHIFT, ring.group, dpair, next,
                       absl::StrCat("ring shift of gradients ", step));
    dpair = next;
  }
  for (const auto& [from, to, text] :
       {std::tuple(dq, q, "d.q"), std::tuple(part(dpair, 0), k, "d.k"),
        std::tuple(part(dpair, 1), v, "d.v")}) {
    builder.Compute(Op::kCast, kernels::NoAttrs{}, {from, b.activations().New(to)}, text);
  }
}

}  // namespace terrace::compiler
