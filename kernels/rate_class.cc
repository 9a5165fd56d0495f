// SPDX-License-Identifier: Apache-2.0
#include "kernels/rate_class.h"

#include <algorithm>

namespace terrace::kernels {
namespace {

using Operands = std::span<const TensorShape>;

std::string Text(MatmulPrecision precision) {
  switch (precision) {
    case MatmulPrecision::kF32:
      return "fp32";
    case MatmulPrecision::kBF16:
      return "bf16";
    case MatmulPrecision::kTF32:
      return "tf32";
    case MatmulPrecision::kF16:
      return "fp16";
    case MatmulPrecision::kFP8:
      return "fp8";
  }
  return "fp32";
}

RateClass MatmulClass(const MatmulAttrs& attrs, Operands operands) {
  const TensorShape& a = operands[0];
  RateClass result = {.kernel = "matmul",
                      .precision = Text(attrs.precision),
                      .rows = operands[2].size[0],
                      .columns = operands[2].size[1],
                      .inner = attrs.transpose_a ? a.size[0] : a.size[1]};
  if (attrs.transpose_a || attrs.transpose_b) {
    result.kernel += attrs.transpose_a ? "_t" : "_n";
    result.kernel += attrs.transpose_b ? "t" : "n";
  }
  return result;
}

RateClass AttentionClass(Op op, MatmulPrecision precision, int64_t sequence, Operands operands) {
  const TensorShape& q = operands[0];
  // A block of ring attention does what whole attention does for its pairs.
  const bool grad = op == Op::kAttentionGrad || op == Op::kAttentionBlockGrad;
  return {.kernel = grad ? "attention_grad" : "attention",
          .precision = Text(precision),
          .rows = sequence,
          .columns = q.size[2],
          .inner = std::max<int64_t>(1, q.size[0] / std::max<int64_t>(1, sequence)) * q.size[1]};
}

}  // namespace

RateClass RateClassOf(Op op, const OpAttrs& attrs, Operands operands) {
  if (op == Op::kMatmul) return MatmulClass(std::get<MatmulAttrs>(attrs), operands);
  if (const auto* a = std::get_if<AttentionAttrs>(&attrs)) {
    return AttentionClass(op, a->precision, a->sequence, operands);
  }
  if (const auto* a = std::get_if<AttentionBlockAttrs>(&attrs)) {
    return AttentionClass(op, a->precision, a->sequence, operands);
  }
  if (op == Op::kUpdateMatrix) {
    const TensorShape& x = operands[0];
    return {.kernel = "matmul",
            .precision = Text(std::get<UpdateAttrs>(attrs).precision),
            .rows = x.size[0],
            .columns = x.size[1],
            .inner = std::min(x.size[0], x.size[1])};
  }
  RateClass result = {.kernel = std::string(Name(op)), .precision = "fp32"};
  if (const auto* a = std::get_if<LossAttrs>(&attrs)) {
    result.precision = Text(a->precision);
    result.rows = operands[0].size[0];
    result.columns = operands[1].size[0];
    result.inner = operands[0].size[1];
    return result;
  }
  for (const TensorShape& operand : operands) {
    if (operand.absent()) continue;
    if (operand.dtype == DType::kBF16) result.precision = "bf16";
    if (operand.dtype == DType::kF16) result.precision = "fp16";
  }
  // The largest operand is what the op works through.
  const auto most = std::max_element(
      operands.begin(), operands.end(),
      [](const TensorShape& a, const TensorShape& b) { return a.Elements() < b.Elements(); });
  result.columns = most->dims > 1 ? most->size[most->dims - 1] : 1;
  result.rows = most->Elements() / std::max<int64_t>(1, result.columns);
  return result;
}

}  // namespace terrace::kernels
