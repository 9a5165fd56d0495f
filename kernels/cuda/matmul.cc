// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"

namespace terrace::kernels::cuda {
namespace {

Matrix MatrixOf(const TensorView& view) {
  return {view.absent() ? nullptr : view.data, view.dtype, view.row_stride};
}

}  // namespace

Status Matmul(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& matmul = std::get<MatmulAttrs>(attrs);
  const TensorView& a = operands[0];
  const TensorView& c = operands[2];
  const Gemm gemm{.m = c.rows(),
                  .n = c.RowElements(),
                  .k = matmul.transpose_a ? a.rows() : a.RowElements(),
                  .transpose_a = matmul.transpose_a,
                  .transpose_b = matmul.transpose_b,
                  .accumulate = matmul.accumulate,
                  .epilogue = matmul.epilogue,
                  .precision = matmul.precision,
                  .gradient = matmul.gradient,
                  .a = MatrixOf(a),
                  .b = MatrixOf(operands[1]),
                  .c = MatrixOf(c),
                  .bias = operands[3].absent() ? nullptr : operands[3].as<const float>(),
                  .residual = MatrixOf(operands[4]),
                  .aux = MatrixOf(operands[5])};
  return RunGemm(gemm, context.workspace, context);
}

}  // namespace terrace::kernels::cuda
