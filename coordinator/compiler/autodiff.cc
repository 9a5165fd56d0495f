// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/autodiff.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/compiler/activation_gradients.h"

namespace terrace::compiler {
namespace {

using kernels::Epilogue;
using kernels::Op;

// What a rule works with: the gradients so far, and where to append. Thread-compatible.
class Backward {
 public:
  Backward(ParameterGradients* parameters, Builder* builder)
      : parameters_(*parameters), builder_(*builder), activations_(builder) {}

  // Notes which products of nodes [begin, end) have a GELU fused into them.
  void Scan(size_t begin, size_t end);

  Builder& builder() { return builder_; }
  ActivationGradients& activations() { return activations_; }

  // The gradient slice of a whole weight; *first says whether this contribution writes or updates.
  Slice Parameter(Slice weight, bool* first) {
    *first = parameters_.TakeFirst(weight.value);
    weight.value = parameters_.Of(weight.value, &builder_);
    return weight;
  }
  // For ops that can only add to a gradient.
  Slice ParameterToUpdate(Slice weight, const std::string& text) {
    if (weight.absent()) return {};
    bool first = false;
    const Slice gradient = Parameter(weight, &first);
    if (first) builder_.Compute(Op::kFill, kernels::FillAttrs{}, {gradient}, text + " zero");
    return gradient;
  }

  // The value before the GELU that was fused into the product that wrote `slice`; absent when there
  // is none.
  Slice BeforeGelu(Slice slice) const {
    const auto it = before_gelu_.find(slice.value);
    return it == before_gelu_.end() ? Slice{} : it->second;
  }

 private:
  ParameterGradients& parameters_;
  Builder& builder_;
  ActivationGradients activations_;
  std::map<int, Slice> before_gelu_;
};

void Backward::Scan(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const Node& node = builder_.nodes()[i];
    const Compute* compute = node.compute();
    if (compute == nullptr || compute->op != Op::kMatmul) continue;
    if (std::get<kernels::MatmulAttrs>(compute->attrs).epilogue != Epilogue::kGelu) continue;
    before_gelu_[node.operands[2].value] = node.operands[5];
  }
}

// A rule gets a copy of the forward node: appending moves nodes.
using Rule = void (*)(const Node& node, Backward& b);

// The fused loss computes its own gradients, so it is replaced, not followed: see ReplaceLoss.
void NoFurtherNodes(const Node&, Backward&) {}

void EmbeddingRule(const Node& node, Backward& b) {
  const Slice dtable = b.ParameterToUpdate(node.operands[1], node.text + " dtable");
  const Slice dpositions = b.ParameterToUpdate(node.operands[2], node.text + " dpositions");
  b.builder().Compute(Op::kEmbeddingGrad, node.compute()->attrs,
                      {node.operands[0], b.activations().Of(node.operands[3]), dtable, dpositions},
                      node.text + " grad");
}

// The destination of a norm's dx, with what already is there as the residual. Without one, dy's
// memory is free to take.
std::pair<Slice, Slice> ResidualAndDx(Slice x, Slice dy, Backward& b) {
  ActivationGradients& gradients = b.activations();
  if (gradients.Has(x)) return {gradients.Of(x), gradients.Of(x)};
  if (gradients.IsWhole(x) && gradients.IsWhole(dy)) {
    gradients.Share(x, dy);
    return {Slice{}, dy};
  }
  return {Slice{}, gradients.New(x)};
}

kernels::NormAttrs NormGradAttrs(const Node& node, bool first) {
  auto attrs = std::get<kernels::NormAttrs>(node.compute()->attrs);
  attrs.accumulate = !first;
  return attrs;
}

void LayerNormRule(const Node& node, Backward& b) {
  const auto& [x, weight, bias] = std::tie(node.operands[0], node.operands[1], node.operands[2]);
  const Slice dy = b.activations().Of(node.operands[3]);
  const auto [residual, dx] = ResidualAndDx(x, dy, b);
  bool first = false;
  const Slice dweight = b.Parameter(weight, &first);
  const Slice dbias = bias.absent() ? Slice{} : b.Parameter(bias, &first);
  b.builder().Compute(
      Op::kLayerNormGrad, NormGradAttrs(node, first),
      {dy, x, weight, node.operands[4], node.operands[5], residual, dx, dweight, dbias},
      node.text + " grad");
}

void RmsNormRule(const Node& node, Backward& b) {
  const auto& [x, weight] = std::tie(node.operands[0], node.operands[1]);
  const Slice dy = b.activations().Of(node.operands[2]);
  const auto [residual, dx] = ResidualAndDx(x, dy, b);
  bool first = false;
  const Slice dweight = b.Parameter(weight, &first);
  b.builder().Compute(Op::kRmsNormGrad, NormGradAttrs(node, first),
                      {dy, x, weight, node.operands[3], residual, dx, dweight},
                      node.text + " grad");
}

// dW = A^T dC, or dC^T A where the weight is stored transposed.
void WeightGradient(const Node& node, Slice dc, Backward& b) {
  const auto& forward = std::get<kernels::MatmulAttrs>(node.compute()->attrs);
  const auto& [a, weight] = std::tie(node.operands[0], node.operands[1]);
  bool first = false;
  const Slice dweight = b.Parameter(weight, &first);
  const kernels::MatmulAttrs attrs = {
      .transpose_a = true, .accumulate = !first, .precision = forward.precision};
  b.builder().Compute(
      Op::kMatmul, attrs,
      {forward.transpose_b ? dc : a, forward.transpose_b ? a : dc, dweight, {}, {}, {}},
      node.text + " dweight");
}

void BiasGradient(const Node& node, Slice dc, Backward& b) {
  const Slice bias = node.operands[3];
  if (bias.absent()) return;
  bool first = false;
  const Slice dbias = b.Parameter(bias, &first);
  b.builder().Compute(Op::kBiasGrad, kernels::AccumulateAttrs{.accumulate = !first}, {dc, dbias},
                      node.text + " dbias");
}

// dA = dC W^T. Where A is the output of a fused GELU, the same product goes on to the gradient of
// the value before it.
void InputGradient(const Node& node, Slice dc, Backward& b) {
  const auto& forward = std::get<kernels::MatmulAttrs>(node.compute()->attrs);
  const auto& [a, weight] = std::tie(node.operands[0], node.operands[1]);
  kernels::MatmulAttrs attrs = {.transpose_b = !forward.transpose_b,
                                .precision = forward.precision};
  ActivationGradients& gradients = b.activations();
  const Slice before_gelu = b.BeforeGelu(a);
  Slice da;
  if (!before_gelu.absent()) {
    attrs.epilogue = Epilogue::kGeluGrad;
    da = gradients.New(before_gelu);
  } else if (gradients.Has(a)) {
    attrs.accumulate = true;
    da = gradients.Of(a);
  } else {
    da = gradients.New(a);
  }
  b.builder().Compute(Op::kMatmul, attrs, {dc, weight, da, {}, {}, before_gelu}, node.text + " dx");
}

// The weight's gradient comes first: A's memory is then free for dA.
void MatmulRule(const Node& node, Backward& b) {
  const auto& forward = std::get<kernels::MatmulAttrs>(node.compute()->attrs);
  const auto& [c, residual, aux] = std::tie(node.operands[2], node.operands[4], node.operands[5]);
  const Slice dc = b.activations().Of(forward.epilogue == Epilogue::kGelu ? aux : c);
  WeightGradient(node, dc, b);
  BiasGradient(node, dc, b);
  InputGradient(node, dc, b);
  // Nothing reads dC after this, so it may become the gradient of the residual.
  if (!residual.absent()) b.activations().Share(residual, dc);
}

// The gradients overwrite gate and up, which nothing else reads.
void SwigluRule(const Node& node, Backward& b) {
  const auto& [gate, up] = std::tie(node.operands[0], node.operands[1]);
  const Slice dy = b.activations().Of(node.operands[2]);
  b.activations().Share(gate, gate);
  b.activations().Share(up, up);
  b.builder().Compute(Op::kSwigluGrad, kernels::NoAttrs{}, {dy, gate, up, gate, up},
                      node.text + " grad");
}

// The forward op rotates in place, the gradient rotates back in place.
void RopeRule(const Node& node, Backward& b) {
  auto attrs = std::get<kernels::RopeAttrs>(node.compute()->attrs);
  attrs.inverse = true;
  b.builder().Compute(Op::kRope, attrs, {b.activations().Of(node.operands[0]), node.operands[1]},
                      node.text + " grad");
}

void AttentionRule(const Node& node, Backward& b) {
  const auto& o = node.operands;
  const Slice dout = b.activations().Of(o[3]);
  const Slice dq = b.activations().New(o[0]);
  const Slice dk = b.activations().New(o[1]);
  const Slice dv = b.activations().New(o[2]);
  b.builder().Compute(Op::kAttentionGrad, node.compute()->attrs,
                      {o[0], o[1], o[2], o[3], o[4], dout, dq, dk, dv}, node.text + " grad");
}

// Null for an op that forward passes do not use.
Rule RuleOf(Op op) {
  switch (op) {
    case Op::kEmbedding:
      return EmbeddingRule;
    case Op::kLayerNorm:
      return LayerNormRule;
    case Op::kRmsNorm:
      return RmsNormRule;
    case Op::kMatmul:
      return MatmulRule;
    case Op::kSwiglu:
      return SwigluRule;
    case Op::kRope:
      return RopeRule;
    case Op::kAttention:
      return AttentionRule;
    case Op::kLmHeadLossGrad:
      return NoFurtherNodes;
    default:
      return nullptr;
  }
}

// Turns the loss into the fused loss and gradient: dhidden and dweight come out of the same chunks
// of logits.
void ReplaceLoss(Node* loss, Backward& b) {
  auto attrs = std::get<kernels::LossAttrs>(loss->compute()->attrs);
  Node node = *loss;
  bool first = false;
  const Slice dweight = b.Parameter(node.operands[1], &first);
  attrs.accumulate = !first;
  node.operands.push_back(b.activations().New(node.operands[0]));
  node.operands.push_back(dweight);
  node.what = Compute{Op::kLmHeadLossGrad, attrs};
  node.text += " grad";
  *loss = std::move(node);
}

}  // namespace

int ParameterGradients::Of(int weight, Builder* builder) {
  const auto [it, is_new] = gradients_.try_emplace(weight, kNone);
  if (is_new) {
    const Value like = builder->graph().values[weight];
    it->second = builder->NewGradientOf(like, v1::GRADIENT).value;
  }
  return it->second;
}

absl::Status AppendBackward(size_t begin, size_t end, ParameterGradients* parameters,
                            Builder* builder) {
  Backward b(parameters, builder);
  b.Scan(begin, end);
  builder->phase = v1::BACKWARD;
  for (size_t i = end; i-- > begin;) {
    if (builder->nodes()[i].compute() == nullptr) continue;
    builder->layer = builder->nodes()[i].layer;
    if (builder->nodes()[i].compute()->op == Op::kLmHeadLoss) ReplaceLoss(&builder->nodes()[i], b);
    const Node node = builder->nodes()[i];
    const Rule rule = RuleOf(node.compute()->op);
    if (rule == nullptr) {
      return absl::InternalError(
          absl::StrCat("no backward rule for op '", Absl(kernels::Name(node.compute()->op)), "'"));
    }
    rule(node, b);
  }
  builder->layer = kNone;
  return absl::OkStatus();
}

}  // namespace terrace::compiler
