// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/layers/autodiff.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace::compiler {
namespace {

using kernels::Epilogue;
using kernels::Op;

// A rule gets a copy of the forward node: appending moves nodes.
using Rule = void (*)(const Node& node, BackwardPass& b);

void EmbeddingRule(const Node& node, BackwardPass& b) {
  const Slice dtable = b.ParameterToUpdate(node.operands[1], node.text + " dtable");
  // Rows of the table that no position has get a gradient too: zero.
  Slice dpositions = node.operands[2];
  if (!dpositions.absent()) {
    const Slice rows = dpositions;
    dpositions =
        b.ParameterToUpdate(b.builder().graph().Whole(rows.value), node.text + " dpositions");
    if (!dpositions.absent() && rows.offset > 0)
      dpositions = Rows(dpositions, rows.offset / rows.shape.row_stride, rows.shape.rows());
  }
  b.builder().Compute(Op::kEmbeddingGrad, node.compute()->attrs,
                      {node.operands[0], b.activations().Of(node.operands[3]), dtable, dpositions,
                       node.operands[4]},
                      node.text + " grad");
}

// The destination of a norm's dx, with what already is there as the residual. Without one, the
// memory of y's gradient is free to take, unless it is borrowed.
std::pair<Slice, Slice> ResidualAndDx(Slice x, Slice y, BackwardPass& b) {
  ActivationGradients& gradients = b.activations();
  if (gradients.Has(x)) {
    const Slice residual = gradients.Of(x);
    // A weight gradient that was put off may still read it.
    if (!b.puts_off_weights() || !gradients.IsWhole(x)) return {residual, residual};
    const Slice dx = b.builder().NewGradientOf(b.builder().graph().values[x.value]);
    gradients.Replace(x, dx);
    return {residual, dx};
  }
  const Slice dy = gradients.Of(y);
  if (gradients.IsWhole(x) && gradients.IsWhole(dy) && !gradients.IsBorrowed(y)) {
    gradients.Share(x, dy);
    return {Slice{}, dy};
  }
  return {Slice{}, gradients.New(x)};
}

// A norm's op makes its weight's gradient also where that is frozen. Then it goes to memory
// that nobody reads, which begins at zero where the op adds.
Slice UnreadGradient(Slice weight, bool adds, const std::string& text, BackwardPass& b) {
  const Slice unread = b.builder().NewValue("d.frozen." + text, v1::ACTIVATION,
                                            kernels::DType::kF32, {weight.shape.rows()});
  if (adds) b.builder().Compute(Op::kFill, kernels::FillAttrs{}, {unread}, text + " dweight zero");
  return unread;
}

kernels::NormAttrs NormGradAttrs(const Node& node, bool first) {
  auto attrs = std::get<kernels::NormAttrs>(node.compute()->attrs);
  attrs.accumulate = !first;
  return attrs;
}

void LayerNormRule(const Node& node, BackwardPass& b) {
  const auto& [x, weight, bias] = std::tie(node.operands[0], node.operands[1], node.operands[2]);
  const Slice dy = b.activations().Of(node.operands[3]);
  const auto [residual, dx] = ResidualAndDx(x, node.operands[3], b);
  bool first = true;
  const bool trains = b.Trains(weight);
  Slice dweight = trains ? b.Parameter(weight, &first) : Slice{};
  const Slice dbias = b.Trains(bias) ? b.Parameter(bias, &first) : Slice{};
  if (!trains) dweight = UnreadGradient(weight, !first, node.text, b);
  b.builder().Compute(
      Op::kLayerNormGrad, NormGradAttrs(node, first),
      {dy, x, weight, node.operands[4], node.operands[5], residual, dx, dweight, dbias},
      node.text + " grad");
}

void RmsNormRule(const Node& node, BackwardPass& b) {
  const auto& [x, weight] = std::tie(node.operands[0], node.operands[1]);
  const Slice dy = b.activations().Of(node.operands[2]);
  const auto [residual, dx] = ResidualAndDx(x, node.operands[2], b);
  bool first = true;
  const Slice dweight = b.Trains(weight) ? b.Parameter(weight, &first)
                                         : UnreadGradient(weight, /*adds=*/false, node.text, b);
  b.builder().Compute(Op::kRmsNormGrad, NormGradAttrs(node, first),
                      {dy, x, weight, node.operands[3], residual, dx, dweight},
                      node.text + " grad");
}

// Adds what comes through a residual sum to the gradient of `residual`: where that has none yet,
// `dy` becomes it, and nothing else may read `dy` after this.
void AddToResidual(Slice residual, Slice dy, const std::string& text, BackwardPass& b) {
  if (!b.activations().Has(residual)) {
    b.activations().Share(residual, dy);
    return;
  }
  const Slice sum = b.activations().Of(residual);
  b.builder().Compute(Op::kAddResidual, kernels::NoAttrs{}, {sum, dy, {}, sum},
                      text + " dresidual");
}

// Which operand of a product of the backward pass is the gradient that came in.
kernels::Fp8Gradient GradientOf(const kernels::MatmulAttrs& forward, bool is_a) {
  if (forward.precision != kernels::MatmulPrecision::kFP8) return kernels::Fp8Gradient::kNone;
  return is_a ? kernels::Fp8Gradient::kA : kernels::Fp8Gradient::kB;
}

// dW = A^T dC, or dC^T A where the weight is stored transposed.
void WeightGradient(const Node& node, Slice dc, BackwardPass& b) {
  const auto& forward = std::get<kernels::MatmulAttrs>(node.compute()->attrs);
  const auto& [a, weight] = std::tie(node.operands[0], node.operands[1]);
  b.OfWeights([&, &a = a, &weight = weight] {
    bool first = false;
    const Slice dweight = b.Parameter(weight, &first);
    const kernels::MatmulAttrs attrs = {.transpose_a = true,
                                        .accumulate = !first,
                                        .precision = forward.precision,
                                        .gradient = GradientOf(forward, forward.transpose_b)};
    b.builder().Compute(
        Op::kMatmul, attrs,
        {forward.transpose_b ? dc : a, forward.transpose_b ? a : dc, dweight, {}, {}, {}},
        node.text + " dweight");
  });
}

void BiasGradient(Slice bias, Slice dc, const std::string& name, BackwardPass& b) {
  if (!b.Trains(bias)) return;
  b.OfWeights([&] {
    bool first = false;
    const Slice dbias = b.Parameter(bias, &first);
    b.builder().Compute(Op::kBiasGrad, kernels::AccumulateAttrs{.accumulate = !first}, {dc, dbias},
                        name + " dbias");
  });
}

// dA = dC W^T. Where A is the output of a fused GELU, the same product goes on to the gradient of
// the value before it.
void InputGradient(const Node& node, Slice dc, BackwardPass& b) {
  const auto& forward = std::get<kernels::MatmulAttrs>(node.compute()->attrs);
  const auto& [a, weight] = std::tie(node.operands[0], node.operands[1]);
  kernels::MatmulAttrs attrs = {.transpose_b = !forward.transpose_b,
                                .precision = forward.precision,
                                .gradient = GradientOf(forward, /*is_a=*/true)};
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
void MatmulRule(const Node& node, BackwardPass& b) {
  const auto& forward = std::get<kernels::MatmulAttrs>(node.compute()->attrs);
  const auto& [c, residual, aux] = std::tie(node.operands[2], node.operands[4], node.operands[5]);
  const Slice dc = b.activations().Of(forward.epilogue == Epilogue::kGelu ? aux : c);
  if (node.weight_gradient) WeightGradient(node, dc, b);
  BiasGradient(node.operands[3], dc, node.text, b);
  if (node.input_gradient) InputGradient(node, dc, b);
  if (!residual.absent()) AddToResidual(residual, dc, node.text, b);
}

void GeluRule(const Node& node, BackwardPass& b) {
  const auto& [x, y] = std::tie(node.operands[0], node.operands[1]);
  const Slice dy = b.activations().Of(y);
  b.activations().Share(x, dy);
  b.builder().Compute(Op::kGeluGrad, node.compute()->attrs, {dy, x, dy}, node.text + " grad");
}

// The forward op multiplies in place, and so does this, but in memory of its own where the gradient
// is that of another activation as well.
void ScaleRule(const Node& node, BackwardPass& b) {
  const Slice x = node.operands[0];
  Slice dx = b.activations().Of(x);
  if (b.activations().IsBorrowed(x)) {
    const Slice own = b.builder().NewGradientOf(b.builder().graph().values[x.value]);
    b.builder().Compute(Op::kCast, kernels::NoAttrs{}, {dx, own}, node.text + " grad copy");
    b.activations().Replace(x, own);
    dx = own;
  }
  b.builder().Compute(Op::kScale, node.compute()->attrs, {dx}, node.text + " grad");
}

// The same elements are dropped of the gradient. It goes to memory of its own, or is added to what
// else reads x: dy may be the gradient of the residual stream as well.
void DropoutRule(const Node& node, BackwardPass& b) {
  const auto& [x, places, y] = std::tie(node.operands[0], node.operands[1], node.operands[2]);
  auto attrs = std::get<kernels::DropoutAttrs>(node.compute()->attrs);
  const Slice dy = b.activations().Of(y);
  attrs.accumulate = b.activations().Has(x);
  const Slice dx = attrs.accumulate ? b.activations().Of(x) : b.activations().New(x);
  b.builder().Compute(Op::kDropout, attrs, {dy, places, dx}, node.text + " grad");
}

// The gradients overwrite gate and up, which nothing else reads.
void SwigluRule(const Node& node, BackwardPass& b) {
  const auto& [gate, up] = std::tie(node.operands[0], node.operands[1]);
  const Slice dy = b.activations().Of(node.operands[2]);
  b.activations().Share(gate, gate);
  b.activations().Share(up, up);
  b.builder().Compute(Op::kSwigluGrad, node.compute()->attrs, {dy, gate, up, gate, up},
                      node.text + " grad");
}

// The gradient of y is that of x and, if nothing else reads it, of the residual at once: one memory
// for all. It stays the residual's, which what comes before x adds to.
void AddResidualRule(const Node& node, BackwardPass& b) {
  const auto& [x, residual, bias, y] =
      std::tie(node.operands[0], node.operands[1], node.operands[2], node.operands[3]);
  const Slice dy = b.activations().Of(y);
  BiasGradient(bias, dy, node.text.substr(0, node.text.find(" + ")), b);
  const bool lends = !residual.absent() && !b.activations().Has(residual);
  if (x.value != y.value) {
    lends ? b.activations().Borrow(x, dy) : b.activations().Share(x, dy);
  }
  if (!residual.absent()) AddToResidual(residual, dy, node.text, b);
}

// Swapping two dimensions again swaps them back.
void PermuteRule(const Node& node, BackwardPass& b) {
  const auto& [x, y] = std::tie(node.operands[0], node.operands[1]);
  const Slice dy = b.activations().Of(y);
  b.builder().Compute(Op::kPermute, node.compute()->attrs, {dy, b.activations().New(x)},
                      node.text + " grad");
}

void CastRule(const Node& node, BackwardPass& b) {
  const Slice dy = b.activations().Of(node.operands[1]);
  const Slice x = node.operands[0];
  b.builder().Compute(
      Op::kCast, kernels::NoAttrs{},
      {dy, Reshape(b.activations().New(x), {x.shape.rows(), x.shape.RowElements()})},
      node.text + " grad");
}

// The forward op rotates in place, the gradient rotates back in place.
void RopeRule(const Node& node, BackwardPass& b) {
  auto attrs = std::get<kernels::RopeAttrs>(node.compute()->attrs);
  attrs.inverse = true;
  b.builder().Compute(Op::kRope, attrs, {b.activations().Of(node.operands[0]), node.operands[1]},
                      node.text + " grad");
}

void AttentionRule(const Node& node, BackwardPass& b) {
  const auto& o = node.operands;
  const Slice dout = b.activations().Of(o[3]);
  const Slice dq = b.activations().New(o[0]);
  const Slice dk = b.activations().New(o[1]);
  const Slice dv = b.activations().New(o[2]);
  b.builder().Compute(Op::kAttentionGrad, node.compute()->attrs,
                      {o[0], o[1], o[2], o[3], o[4], dout, dq, dk, dv, o[5], o[6]},
                      node.text + " grad");
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
    case Op::kGelu:
      return GeluRule;
    case Op::kScale:
      return ScaleRule;
    case Op::kDropout:
      return DropoutRule;
    case Op::kSwiglu:
      return SwigluRule;
    case Op::kRope:
      return RopeRule;
    case Op::kAttention:
      return AttentionRule;
    case Op::kAddResidual:
      return AddResidualRule;
    case Op::kPermute:
      return PermuteRule;
    case Op::kCast:
      return CastRule;
    default:
      return nullptr;
  }
}

absl::Status Apply(const Node& node, BackwardPass& b) {
  if (!node.has_rule) return absl::OkStatus();
  if (std::holds_alternative<EnterTensorParallel>(node.what)) {
    EnterTensorParallelRule(node, b);
  } else if (std::holds_alternative<RingAttention>(node.what)) {
    RingAttentionRule(node, b);
  } else if (node.collective() != nullptr) {
    CollectiveRule(node, b);
  } else if (node.compute() != nullptr) {
    const Rule rule = RuleOf(node.compute()->op);
    if (rule == nullptr) {
      return absl::InternalError(
          absl::StrCat("no backward rule for op '", Absl(kernels::Name(node.compute()->op)), "'"));
    }
    rule(node, b);
  }
  return absl::OkStatus();
}

}  // namespace

Slice BackwardPass::ParameterToUpdate(Slice weight, const std::string& text) {
  if (!Trains(weight)) return {};
  bool first = false;
  const Slice gradient = Parameter(weight, &first);
  if (first) builder_.Compute(Op::kFill, kernels::FillAttrs{}, {gradient}, text + " zero");
  return gradient;
}

Slice BackwardPass::BeforeGelu(Slice slice) const {
  const auto it = before_gelu_.find(slice.value);
  if (it == before_gelu_.end()) return {};
  slice.value = it->second;
  return slice;
}

void BackwardPass::NoteGelus(const std::vector<Node>& nodes) {
  for (const Node& node : nodes) {
    const Compute* compute = node.compute();
    if (compute == nullptr || compute->op != Op::kMatmul) continue;
    if (std::get<kernels::MatmulAttrs>(compute->attrs).epilogue != Epilogue::kGelu) continue;
    before_gelu_[node.operands[2].value] = node.operands[5].value;
  }
}

absl::Status BackwardPass::RunSegment(const Segment& segment) {
  const int mark = builder_.mark();
  const std::vector<Node> nodes = Repeat(segment, prefetched_, &builder_);
  NoteGelus(nodes);
  builder_.phase = v1::BACKWARD;
  // The layer that was repeated last is the one that begins here.
  int layer = builder_.mark() == mark || nodes.empty() ? kNone : nodes.back().layer;
  for (size_t i = nodes.size(); i-- > 0;) {
    if (nodes[i].layer != layer && nodes[i].layer != kNone) builder_.Mark();
    builder_.layer = layer = nodes[i].layer;
    RETURN_IF_ERROR(Apply(nodes[i], *this));
  }
  builder_.layer = kNone;
  return absl::OkStatus();
}

absl::Status BackwardPass::Run(const std::vector<Segment>& segments) {
  for (size_t i = segments.size(); i-- > 0;) RETURN_IF_ERROR(RunSegment(segments[i]));
  return absl::OkStatus();
}

}  // namespace terrace::compiler
