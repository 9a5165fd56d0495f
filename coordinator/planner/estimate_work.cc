// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_work.h"

#include <algorithm>
#include <array>

#include "coordinator/layout/precision.h"
#include "coordinator/layout/rules.h"
#include "kernels/gemm_workspace.h"
#include "kernels/op.h"
#include "proto/program/op_workspace.h"

namespace terrace {
namespace {

// Of the loss's logits, f32 (compiler/forward_head.cc, compiler/workspace.cc).
constexpr int64_t kLogitsBytes = int64_t{64} << 20;
constexpr int64_t kLossRows = 256;
// A GPU takes chunks of logits that need so much more than the smallest.
constexpr int64_t kCudaChunkBytes = int64_t{192} << 20;

struct Arithmetic {
  kernels::DType activation = kernels::DType::kF32;
  kernels::MatmulPrecision layers = kernels::MatmulPrecision::kF32;
  kernels::MatmulPrecision head = kernels::MatmulPrecision::kF32;
};

kernels::MatmulPrecision ProductOf(std::string_view precision) {
  using kernels::MatmulPrecision;
  if (precision == "bf16") return MatmulPrecision::kBF16;
  if (precision == "fp8") return MatmulPrecision::kFP8;
  return precision == "fp16" ? MatmulPrecision::kF16 : MatmulPrecision::kF32;
}

Arithmetic ArithmeticOf(const v1::Layout& layout) {
  using kernels::DType;
  using kernels::MatmulPrecision;
  const std::string& precision = layout.precision();
  const MatmulPrecision head = ProductOf(HeadPrecision(layout));
  // Of single layers' precisions that with the most scratch: fp8 scales both operands.
  const MatmulPrecision layers =
      ComputesIn(layout, "fp8") ? MatmulPrecision::kFP8 : ProductOf(precision);
  if (precision == "bf16" || precision == "fp8") return {DType::kBF16, layers, head};
  return {precision == "fp16" ? DType::kF16 : DType::kF32, layers, head};
}

kernels::TensorShape Matrix(kernels::DType type, int64_t rows, int64_t columns) {
  return {.dtype = type, .dims = 2, .size = {rows, columns}, .row_stride = columns};
}

kernels::DType WeightType(const v1::Layout& layout) {
  if (RoundsWeights(layout)) return ArithmeticOf(layout).activation;
  return layout.stochastic_rounding() ? kernels::DType::kBF16 : kernels::DType::kF32;
}

WorkspaceTarget TargetOf(const v1::Layout& layout) {
  return {.device = layout.device(),
          .threads = static_cast<int>(std::max<uint32_t>(1, layout.threads_per_rank()))};
}

// Scratch of the gradient of a product's input: gradients of `type` times a weight.
int64_t ProductBytes(const v1::Layout& layout, kernels::DType type,
                     kernels::MatmulPrecision precision, int64_t tokens, int64_t outputs,
                     int64_t inputs) {
  const std::array<kernels::TensorShape, 6> operands = {Matrix(type, tokens, outputs),
                                                        Matrix(WeightType(layout), outputs, inputs),
                                                        Matrix(type, tokens, inputs)};
  return WorkspaceBytes(TargetOf(layout), kernels::Op::kMatmul,
                        kernels::MatmulAttrs{.precision = precision}, operands);
}

int64_t SplitLossBytes(const EstimateModel& model, const v1::Layout& layout, int64_t tokens,
                       int64_t vocabulary) {
  const int64_t logits = std::min(kLogitsBytes, tokens * vocabulary * kF32Bytes);
  if (layout.device() != "cuda") return logits;
  const int64_t rows = std::min(tokens, std::max(kLossRows, kLogitsBytes / vocabulary / kF32Bytes));
  return rows * vocabulary * kF32Bytes + ProductBytes(layout, kernels::DType::kF32,
                                                      ArithmeticOf(layout).head, rows, vocabulary,
                                                      model.config.hidden);
}

int64_t FusedLossBytes(const EstimateModel& model, const v1::Layout& layout, int64_t tokens,
                       int64_t vocabulary) {
  const Arithmetic arithmetic = ArithmeticOf(layout);
  const int64_t hidden = model.config.hidden, rows = std::min(tokens, kLossRows);
  if (layout.device() != "cuda") {
    return kernels::LmHeadWorkspaceBytes(tokens, hidden, vocabulary, rows, /*grad=*/true,
                                         arithmetic.activation, arithmetic.head,
                                         TargetOf(layout).threads);
  }
  const auto with_rows = [&](int64_t chunk_rows) {
    const std::array<kernels::TensorShape, 2> operands = {
        Matrix(arithmetic.activation, tokens, hidden),
        Matrix(WeightType(layout), vocabulary, hidden)};
    return WorkspaceBytes(
        TargetOf(layout), kernels::Op::kLmHeadLossGrad,
        kernels::LossAttrs{.chunk_rows = chunk_rows, .precision = arithmetic.head}, operands);
  };
  return std::min(with_rows(rows) + kCudaChunkBytes, with_rows(tokens));
}

}  // namespace

int64_t TokensOf(const v1::Layout& layout, int64_t sequence) {
  return int64_t{layout.micro_batch()} * sequence / layout.context_parallel();
}

int64_t LossBytes(const EstimateModel& model, const v1::Layout& layout) {
  const int64_t tokens = TokensOf(layout, model.sequence), tp = layout.tensor_parallel();
  const int64_t vocabulary = (model.config.vocabulary + tp - 1) / tp;
  const int64_t rows = 2 * tokens * model.config.hidden * ElementBytes(layout);
  return rows + (tp > 1 ? SplitLossBytes(model, layout, tokens, vocabulary)
                        : FusedLossBytes(model, layout, tokens, vocabulary));
}

int64_t UpdateWorkBytes(const EstimateModel& model, const v1::Layout& layout) {
  if (model.update_matrix.rows == 0) return 0;
  const bool exact = layout.precision() == "fp32" || layout.precision() == "tf32";
  const kernels::TensorShape matrix =
      Matrix(kernels::DType::kF32, model.update_matrix.rows, model.update_matrix.columns);
  const std::array<kernels::TensorShape, 1> operands = {matrix};
  if (model.update_factored)
    return WorkspaceBytes(TargetOf(layout), kernels::Op::kUpdateFactored, kernels::UpdateAttrs{},
                          operands);
  return WorkspaceBytes(TargetOf(layout), kernels::Op::kUpdateMatrix,
                        kernels::UpdateAttrs{.precision = exact ? kernels::MatmulPrecision::kF32
                                                                : kernels::MatmulPrecision::kBF16},
                        operands);
}

// Gradients of a residual sum, of what entered the block, of blocks side by side both, of what a
// norm or a factor after the block changes, and of the MLP's inner values. A GPU converts the
// largest weight for its product.
int64_t LayerWorkBytes(const EstimateModel& model, const v1::Layout& layout) {
  const ModelConfig& config = model.config;
  const int64_t tp = layout.tensor_parallel(), sp = layout.sequence_parallel() ? tp : 1;
  const int64_t tokens = TokensOf(layout, model.sequence);
  const int64_t inner = (config.mlp == MlpKind::kGated ? 2 : 1) * config.intermediate / tp;
  const bool three = (config.parallel_residual && !config.shared_norm) || config.norm_after ||
                     config.residual_scale != 1;
  const int64_t sums = three ? 3 : 2;
  const int64_t bytes = tokens * ElementBytes(layout) * (sums * config.hidden / sp + inner);
  if (layout.device() != "cuda") return bytes;
  const Arithmetic arithmetic = ArithmeticOf(layout);
  const int64_t tile = TileBytes(layout);
  const int64_t outputs =
      tile > 0 ? std::min(inner, std::max<int64_t>(1, tile / kF32Bytes / config.hidden)) : inner;
  return bytes + ProductBytes(layout, arithmetic.activation, arithmetic.layers, tokens, outputs,
                              config.hidden);
}

}  // namespace terrace
