// SPDX-License-Identifier: Apache-2.0
#include "proto/program/op_codec.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using kernels::Op;
using kernels::OpAttrs;
using v1::ComputeOp;

absl::StatusOr<kernels::MatmulPrecision> DecodePrecision(v1::MatmulPrecision precision) {
  switch (precision) {
    case v1::MATMUL_F32:
      return kernels::MatmulPrecision::kF32;
    case v1::MATMUL_BF16:
      return kernels::MatmulPrecision::kBF16;
    case v1::MATMUL_TF32:
      return kernels::MatmulPrecision::kTF32;
    case v1::MATMUL_F16:
      return kernels::MatmulPrecision::kF16;
    case v1::MATMUL_FP8:
      return kernels::MatmulPrecision::kFP8;
    default:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("precision: got ", static_cast<int>(precision),
                   ", must be MATMUL_F32, MATMUL_BF16, MATMUL_TF32, MATMUL_F16 or MATMUL_FP8"));
}

absl::StatusOr<OpAttrs> DecodeMatmul(const v1::MatmulAttrs& m) {
  const auto precision = DecodePrecision(m.precision());
  if (!precision.ok()) return precision.status();
  if (!v1::Epilogue_IsValid(m.epilogue())) {
    return absl::InvalidArgumentError(absl::StrCat("epilogue: got ", static_cast<int>(m.epilogue()),
                                                   ", must be NONE, GELU or GELU_GRAD"));
  }
  if (!v1::Fp8Gradient_IsValid(m.gradient())) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient: got ", static_cast<int>(m.gradient()),
                     ", must be FP8_GRADIENT_NONE, FP8_GRADIENT_A or FP8_GRADIENT_B"));
  }
  return kernels::MatmulAttrs{.transpose_a = m.transpose_a(),
                              .transpose_b = m.transpose_b(),
                              .accumulate = m.accumulate(),
                              .epilogue = static_cast<kernels::Epilogue>(m.epilogue()),
                              .precision = *precision,
                              .gradient = static_cast<kernels::Fp8Gradient>(m.gradient())};
}

kernels::ScoreTerms DecodeScores(const v1::ScoreTerms& m) {
  return {.softcap = m.softcap(),
          .alibi_heads = m.alibi_heads(),
          .dropout = m.dropout(),
          .seed = m.seed(),
          .site = m.site()};
}

absl::StatusOr<OpAttrs> DecodeAttention(const v1::AttentionAttrs& m) {
  const auto precision = DecodePrecision(m.precision());
  if (!precision.ok()) return precision.status();
  return kernels::AttentionAttrs{.sequence = m.sequence(),
                                 .window = m.window(),
                                 .scale = m.scale(),
                                 .precision = *precision,
                                 .terms = DecodeScores(m.terms())};
}

kernels::LossTerms DecodeTerms(const v1::LossTerms& m) {
  return {.label_smoothing = m.label_smoothing(), .z_loss = m.z_loss(), .softcap = m.softcap()};
}

absl::StatusOr<OpAttrs> DecodeLoss(const v1::LossAttrs& m) {
  const auto precision = DecodePrecision(m.precision());
  if (!precision.ok()) return precision.status();
  return kernels::LossAttrs{.chunk_rows = m.chunk_rows(),
                            .accumulate = m.accumulate(),
                            .precision = *precision,
                            .terms = DecodeTerms(m.terms())};
}

// Counts that ranks are numbered by: any larger one is nonsense and would overflow.
constexpr int64_t kMaxContextRanks = 1 << 20;

absl::StatusOr<kernels::TokenShare> DecodeContext(const v1::ContextAttrs& m, int64_t sequence) {
  if (m.ranks() < 0 || m.ranks() > kMaxContextRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("context.ranks: got ", m.ranks(), ", must be 0 to ", kMaxContextRanks));
  }
  if (m.zigzag() && sequence % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence: got ", sequence, ", must be even where the context is in zig-zag"));
  }
  return kernels::TokenShare{.ranks = std::max<int64_t>(1, m.ranks()), .zigzag = m.zigzag()};
}

absl::StatusOr<OpAttrs> DecodeEmbedding(const v1::EmbeddingAttrs& m) {
  const auto context = DecodeContext(m.context(), m.sequence());
  if (!context.ok()) return context.status();
  return kernels::EmbeddingAttrs{
      .sequence = m.sequence(), .shard_rows = m.shard_rows(), .context = *context};
}

absl::StatusOr<OpAttrs> DecodeRope(const v1::RopeAttrs& m) {
  const auto context = DecodeContext(m.context(), m.sequence());
  if (!context.ok()) return context.status();
  return kernels::RopeAttrs{.sequence = m.sequence(), .inverse = m.inverse(), .context = *context};
}

absl::StatusOr<OpAttrs> DecodeAttentionBlock(const v1::AttentionBlockAttrs& m) {
  const auto precision = DecodePrecision(m.precision());
  if (!precision.ok()) return precision.status();
  const auto context = DecodeContext(m.context(), m.sequence());
  if (!context.ok()) return context.status();
  if (m.step() < 0 || m.step() >= context->ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: got ", m.step(), ", must be 0 to ", context->ranks - 1));
  }
  return kernels::AttentionBlockAttrs{.sequence = m.sequence(),
                                      .window = m.window(),
                                      .scale = m.scale(),
                                      .precision = *precision,
                                      .context = *context,
                                      .step = m.step(),
                                      .accumulate = m.accumulate(),
                                      .accumulate_keys = m.accumulate_keys(),
                                      .terms = DecodeScores(m.terms())};
}

absl::StatusOr<OpAttrs> DecodePermute(const v1::PermuteAttrs& m) {
  kernels::PermuteAttrs attrs;
  uint32_t seen = 0;
  for (int i = 0; i < m.order_size() && i < 4; ++i) {
    attrs.order[i] = m.order(i);
    if (m.order(i) >= 0 && m.order(i) < 4) seen |= 1u << m.order(i);
  }
  if (m.order_size() == 4 && seen == 0b1111) return attrs;
  return absl::InvalidArgumentError("order: must hold each of 0, 1, 2 and 3 once");
}

absl::StatusOr<OpAttrs> DecodeUpdate(const v1::UpdateAttrs& m) {
  const auto precision = DecodePrecision(m.precision());
  if (!precision.ok()) return precision.status();
  kernels::UpdateAttrs attrs{.rule = DecodeRule(m.rule()),
                             .beta1 = m.beta1(),
                             .beta2 = m.beta2(),
                             .epsilon = m.epsilon(),
                             .weight_decay = m.weight_decay(),
                             .block = m.block(),
                             .lr_scale = m.lr_scale() == 0 ? 1.0f : m.lr_scale(),
                             .step_scale = m.step_scale() == 0 ? 1.0f : m.step_scale(),
                             .iterations = m.iterations(),
                             .precision = *precision,
                             .clip_threshold = m.clip_threshold(),
                             .least_scale = m.least_scale(),
                             .beta3 = m.beta3(),
                             .error_epsilon = m.error_epsilon()};
  if (!m.has_rounding()) return attrs;
  attrs.rounding.seed = m.rounding().seed();
  attrs.rounding.buffer = m.rounding().buffer();
  attrs.rounding.first = m.rounding().first();
  return attrs;
}

absl::StatusOr<OpAttrs> DecodeBlock(const v1::BlockAttrs& m) {
  kernels::BlockAttrs attrs = {.block = m.block(),
                               .runs = std::max<int64_t>(1, m.runs()),
                               .parts = std::max<int64_t>(1, m.parts())};
  const kernels::FormatRow* const row = DecodeBlockFormat(m.format());
  if (row == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("format: got ", static_cast<int>(m.format()),
                                                   ", must be INT8_LINEAR, INT4_LINEAR, "
                                                   "FP8_E4M3 or NF4"));
  }
  attrs.format = row->format;
  return attrs;
}

absl::StatusOr<OpAttrs> DecodeActivation(const v1::ActivationAttrs& m) {
  if (v1::Activation_IsValid(m.activation()))
    return kernels::ActivationAttrs{static_cast<kernels::Activation>(m.activation())};
  return absl::InvalidArgumentError(absl::StrCat(
      "activation: got ", static_cast<int>(m.activation()), ", must be one of v1::Activation"));
}

OpAttrs DecodeDropout(const v1::DropoutAttrs& m) {
  return kernels::DropoutAttrs{.probability = m.probability(),
                               .seed = m.seed(),
                               .site = m.site(),
                               .row_shards = m.row_shards() == 0 ? 1 : m.row_shards(),
                               .column_shards = m.column_shards() == 0 ? 1 : m.column_shards(),
                               .accumulate = m.accumulate()};
}

absl::StatusOr<OpAttrs> DecodeAttrs(const ComputeOp& c) {
  switch (c.attrs_case()) {
    case ComputeOp::ATTRS_NOT_SET:
      return kernels::NoAttrs{};
    case ComputeOp::kEmbedding:
      return DecodeEmbedding(c.embedding());
    case ComputeOp::kNorm:
      return kernels::NormAttrs{.epsilon = c.norm().epsilon(),
                                .accumulate = c.norm().accumulate(),
                                .unit_offset = c.norm().unit_offset()};
    case ComputeOp::kMatmul:
      return DecodeMatmul(c.matmul());
    case ComputeOp::kAccumulate:
      return kernels::AccumulateAttrs{.accumulate = c.accumulate().accumulate()};
    case ComputeOp::kRope:
      return DecodeRope(c.rope());
    case ComputeOp::kAttention:
      return DecodeAttention(c.attention());
    case ComputeOp::kLoss:
      return DecodeLoss(c.loss());
    case ComputeOp::kFill:
      return kernels::FillAttrs{.value = c.fill().value()};
    case ComputeOp::kClip:
      return kernels::ClipAttrs{.clip_grad_norm = c.clip().clip_grad_norm()};
    case ComputeOp::kUpdate:
      return DecodeUpdate(c.update());
    case ComputeOp::kAttentionBlock:
      return DecodeAttentionBlock(c.attention_block());
    case ComputeOp::kCrossEntropy:
      return kernels::CrossEntropyAttrs{.shard_rows = c.cross_entropy().shard_rows(),
                                        .vocabulary = c.cross_entropy().vocabulary(),
                                        .accumulate = c.cross_entropy().accumulate(),
                                        .terms = DecodeTerms(c.cross_entropy().terms())};
    case ComputeOp::kScale:
      return kernels::ScaleAttrs{.scale = c.scale().scale()};
    case ComputeOp::kPermute:
      return DecodePermute(c.permute());
    case ComputeOp::kBlock:
      return DecodeBlock(c.block());
    case ComputeOp::kActivation:
      return DecodeActivation(c.activation());
    case ComputeOp::kDropout:
      return DecodeDropout(c.dropout());
    case ComputeOp::kPreference:
      return kernels::PreferenceAttrs{.sequence = c.preference().sequence(),
                                      .beta = c.preference().beta(),
                                      .label_smoothing = c.preference().label_smoothing(),
                                      .accumulate = c.preference().accumulate()};
  }
  return absl::InvalidArgumentError("attributes of an unknown kind");
}

// The alternative of OpAttrs that `op` takes.
OpAttrs DefaultAttrs(Op op) {
  switch (op) {
    case Op::kEmbedding:
    case Op::kEmbeddingGrad:
      return kernels::EmbeddingAttrs{};
    case Op::kLayerNorm:
    case Op::kLayerNormGrad:
    case Op::kRmsNorm:
    case Op::kRmsNormGrad:
      return kernels::NormAttrs{};
    case Op::kMatmul:
      return kernels::MatmulAttrs{};
    case Op::kBiasGrad:
      return kernels::AccumulateAttrs{};
    case Op::kRope:
      return kernels::RopeAttrs{};
    case Op::kAttention:
    case Op::kAttentionGrad:
    case Op::kAttentionCached:
      return kernels::AttentionAttrs{};
    case Op::kLmHeadLoss:
    case Op::kLmHeadLossGrad:
      return kernels::LossAttrs{};
    case Op::kAttentionBlock:
    case Op::kAttentionBlockGrad:
      return kernels::AttentionBlockAttrs{};
    case Op::kCrossEntropyRows:
    case Op::kCrossEntropyLoss:
    case Op::kCrossEntropyGrad:
      return kernels::CrossEntropyAttrs{};
    case Op::kPreferenceLoss:
      return kernels::PreferenceAttrs{};
    case Op::kSquaredNorm:
    case Op::kScale:
    case Op::kSoftcap:
      return kernels::ScaleAttrs{};
    case Op::kPermute:
      return kernels::PermuteAttrs{};
    case Op::kFill:
      return kernels::FillAttrs{};
    case Op::kGradScale:
      return kernels::ClipAttrs{};
    case Op::kUpdate:
    case Op::kUpdateStochastic:
    case Op::kUpdateInt8:
    case Op::kUpdateMatrix:
    case Op::kUpdateFactored:
      return kernels::UpdateAttrs{};
    case Op::kEncodeBlocks:
    case Op::kDecodeBlocks:
    case Op::kSumBlocks:
      return kernels::BlockAttrs{};
    case Op::kDropout:
      return kernels::DropoutAttrs{};
    case Op::kGelu:
    case Op::kGeluGrad:
      return kernels::ActivationAttrs{};
    case Op::kSwiglu:
    case Op::kSwigluGrad:
      return kernels::ActivationAttrs{kernels::Activation::kSilu};
    case Op::kGatherRows:
    case Op::kCast:
    case Op::kAdd:
    case Op::kAddResidual:
    case Op::kSum:
    case Op::kSumStats:
      return kernels::NoAttrs{};
  }
  return kernels::NoAttrs{};
}

// Larger than any tensor; keeps every product of sizes inside int64_t.
constexpr int64_t kMaxElements = int64_t{1} << 48;

absl::Status ShapeError(const v1::Operand& operand, const std::string& rule) {
  std::string sizes;
  for (int64_t size : operand.shape()) absl::StrAppend(&sizes, sizes.empty() ? "" : ",", size);
  return absl::InvalidArgumentError(absl::StrCat(
      "operand of buffer ", operand.buffer(), ": got [", sizes, "] of dtype ",
      static_cast<int>(operand.dtype()), ", row stride ", operand.row_stride(), "; must ", rule));
}

}  // namespace

kernels::OptimizerRule DecodeRule(v1::OptimizerRule rule) {
  if (rule == v1::OPTIMIZER_RULE_UNSPECIFIED) return kernels::OptimizerRule::kAdamw;
  return static_cast<kernels::OptimizerRule>(rule);
}

absl::StatusOr<DecodedOp> DecodeOp(const ComputeOp& compute) {
  DecodedOp decoded;
  if (!kernels::ParseOp(compute.op(), &decoded.op)) {
    return absl::InvalidArgumentError(
        absl::StrCat("op: got '", compute.op(), "', must be a name of the op table"));
  }
  absl::StatusOr<OpAttrs> attrs = DecodeAttrs(compute);
  if (!attrs.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(compute.op(), ": ", attrs.status().message()));
  }
  if (attrs->index() != DefaultAttrs(decoded.op).index()) {
    return absl::InvalidArgumentError(
        absl::StrCat(compute.op(), ": carries attributes of another op (field ",
                     static_cast<int>(compute.attrs_case()), "), must carry its own"));
  }
  decoded.attrs = *std::move(attrs);
  if (kernels::IsUpdate(decoded.op)) {
    const bool rounds = compute.update().has_rounding();
    if (rounds != (decoded.op == Op::kUpdateStochastic)) {
      return absl::InvalidArgumentError(
          absl::StrCat(compute.op(), ": rounding is ", rounds ? "there" : "absent",
                       ", must be there with update_stochastic alone"));
    }
  }
  return decoded;
}

void ResolveRank(const Coordinates& rank, OpAttrs* attrs) {
  if (auto* a = std::get_if<kernels::EmbeddingAttrs>(attrs)) {
    if (a->shard_rows > 0) a->shard = rank.tensor;
    if (a->context.ranks > 1) a->context.index = rank.context;
  } else if (auto* a = std::get_if<kernels::RopeAttrs>(attrs)) {
    if (a->context.ranks > 1) a->context.index = rank.context;
  } else if (auto* a = std::get_if<kernels::AttentionBlockAttrs>(attrs)) {
    a->context.index = rank.context;
  } else if (auto* a = std::get_if<kernels::CrossEntropyAttrs>(attrs)) {
    a->shard = rank.tensor;
  } else if (auto* a = std::get_if<kernels::DropoutAttrs>(attrs)) {
    if (a->row_shards > 1 || a->column_shards > 1) a->shard = rank.tensor;
  }
}

const kernels::FormatRow* DecodeBlockFormat(v1::BlockFormat format) {
  switch (format) {
    case v1::INT8_LINEAR:
      return &kernels::RowOf(kernels::Format::kInt8Linear);
    case v1::INT4_LINEAR:
      return &kernels::RowOf(kernels::Format::kInt4Linear);
    case v1::FP8_E4M3:
      return &kernels::RowOf(kernels::Format::kFP8);
    case v1::NF4:
      return &kernels::RowOf(kernels::Format::kNF4);
    default:
      return nullptr;
  }
}

absl::StatusOr<kernels::TensorShape> DecodeShape(const v1::Operand& operand) {
  kernels::TensorShape shape;
  if (operand.access() == v1::ACCESS_UNSPECIFIED) return shape;
  if (operand.dtype() == v1::DTYPE_UNSPECIFIED || !v1::DType_IsValid(operand.dtype())) {
    return ShapeError(operand, "have one of the dtypes of program.proto");
  }
  if (operand.shape_size() < 1 || operand.shape_size() > kernels::kMaxDims) {
    return ShapeError(operand, absl::StrCat("have 1 to ", kernels::kMaxDims, " dimensions"));
  }
  shape.dtype = static_cast<kernels::DType>(operand.dtype());
  shape.dims = operand.shape_size();
  int64_t elements = 1;
  for (int d = 0; d < shape.dims; ++d) {
    const int64_t size = operand.shape(d);
    if (size < 1 || size > kMaxElements / elements) {
      return ShapeError(operand, "have sizes of at least 1 and fewer than 2^48 elements");
    }
    elements *= size;
    shape.size[d] = size;
  }
  const int64_t row = shape.RowElements();
  shape.row_stride = operand.row_stride() == 0 ? row : operand.row_stride();
  if (shape.row_stride < row || shape.row_stride > kMaxElements / shape.rows()) {
    return ShapeError(operand, "have a row stride of 0 (dense) or at least one row's elements");
  }
  return shape;
}

}  // namespace terrace
