// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <variant>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

namespace terrace::kernels::cpu {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Turns one row of logits into softmax minus one-hot (zeros without a target), in place; returns its loss.
double SoftmaxRow(float* row, int64_t vocab, int32_t target) {
  if (target < 0) {
    std::fill(row, row + vocab, 0.0f);
    return 0;
  }
  const float top = *std::max_element(row, row + vocab);
  const double target_logit = row[target];
  double sum = 0;
  for (int64_t j = 0; j < vocab; ++j) {
    row[j] = std::exp(row[j] - top);
    sum += row[j];
  }
  for (int64_t j = 0; j < vocab; ++j) row[j] = static_cast<float>(row[j] / sum);
  row[target] -= 1.0f;
  return std::log(sum) + top - target_logit;
}

Status Run(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context, bool grad) {
  const auto& loss_attrs = std::get<LossAttrs>(attrs);
  const TensorView& hidden = operands[0];
  const TensorView& weight = operands[1];
  const int32_t* targets = operands[2].as<const int32_t>();
  const int64_t rows = hidden.rows(), width = hidden.RowElements(), vocab = weight.rows();
  const int64_t chunk = std::min(rows, loss_attrs.chunk_rows);
  float* logits = reinterpret_cast<float*>(context.workspace);
  double* losses = reinterpret_cast<double*>(context.workspace + RoundUp(chunk * vocab * 4, 64));
  const int64_t used = RoundUp(chunk * vocab * 4, 64) + RoundUp(chunk * 8, 64);
  const Context inner{context.threads, context.workspace + used, context.workspace_bytes - used};
  const Matrix w{weight.data, weight.dtype, weight.row_stride};
  double total = 0;
  int64_t counted = 0;
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const auto row_of = [&](const TensorView& view) {
      return Matrix{view.as<std::byte>() + first * view.row_stride * SizeOf(view.dtype), view.dtype, view.row_stride};
    };
    const Matrix l{logits, DType::kF32, vocab};
    Gemm gemm{.m = n, .n = vocab, .k = width, .transpose_b = true, .precision = loss_attrs.precision,
              .a = row_of(hidden), .b = w, .c = l};
    if (Status status = RunGemm(gemm, inner); !status.ok()) return status;
#pragma omp parallel for num_threads(context.threads) schedule(static)
    for (int64_t i = 0; i < n; ++i) losses[i] = SoftmaxRow(logits + i * vocab, vocab, targets[first + i]);
    for (int64_t i = 0; i < n; ++i) {
      total += losses[i];
      counted += targets[first + i] >= 0;
    }
    if (!grad) continue;
    gemm = {.m = n, .n = width, .k = vocab, .precision = loss_attrs.precision, .a = l, .b = w,
            .c = row_of(operands[4])};
    if (Status status = RunGemm(gemm, inner); !status.ok()) return status;
    gemm = {.m = vocab, .n = width, .k = n, .transpose_a = true, .accumulate = first > 0 || loss_attrs.accumulate,
            .precision = loss_attrs.precision, .a = l, .b = row_of(hidden),
            .c = {operands[5].data, DType::kF32, operands[5].row_stride}};
    if (Status status = RunGemm(gemm, inner); !status.ok()) return status;
  }
  float* stats = operands[3].as<float>();
  stats[0] = static_cast<float>(total);
  stats[1] = static_cast<float>(counted);
  return {};
}

}  // namespace

Status LmHeadLoss(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  return Run(attrs, operands, context, false);
}

Status LmHeadLossGrad(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  return Run(attrs, operands, context, true);
}

}  // namespace terrace::kernels::cpu
