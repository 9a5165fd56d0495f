// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cpu/fp8.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/gemm_workspace.h"

namespace terrace::kernels::cpu {
namespace {

Matrix MatrixOf(const TensorView& view) {
  return {.data = view.absent() ? nullptr : view.data,
          .dtype = view.dtype,
          .row_stride = view.row_stride};
}

// `x` quantised, in `memory`; its factor goes to the product.
Matrix Quantised(const TensorView& x, Fp8Format format, std::byte* memory, int threads,
                 Gemm* gemm) {
  TensorView to = x;
  to.data = memory;
  to.dtype = DType::kBF16;
  to.row_stride = x.RowElements();
  gemm->scale *= QuantiseFp8(x, to, format, threads).factor;
  return MatrixOf(to);
}

// A bf16 product of quantised operands, which has the numbers of an fp8 one.
Status RunFp8(Gemm gemm, const MatmulAttrs& attrs, std::span<const TensorView> operands,
              Context context) {
  const Fp8GemmScratch scratch(gemm.m, gemm.n, gemm.k, context.threads);
  std::byte* a = context.workspace + scratch.product_bytes;
  const auto format = [&](Fp8Gradient operand) {
    return attrs.gradient == operand ? Fp8Format::kE5M2 : Fp8Format::kE4M3;
  };
  gemm.precision = MatmulPrecision::kBF16;
  gemm.a = Quantised(operands[0], format(Fp8Gradient::kA), a, context.threads, &gemm);
  gemm.b =
      Quantised(operands[1], format(Fp8Gradient::kB), a + scratch.a_bytes, context.threads, &gemm);
  context.workspace_bytes = scratch.product_bytes;
  return RunGemm(gemm, context);
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
                  .a = MatrixOf(a),
                  .b = MatrixOf(operands[1]),
                  .c = MatrixOf(c),
                  .bias = operands[3].absent() ? nullptr : operands[3].as<const float>(),
                  .residual = MatrixOf(operands[4]),
                  .aux = MatrixOf(operands[5])};
  if (matmul.precision == MatmulPrecision::kFP8) return RunFp8(gemm, matmul, operands, context);
  return RunGemm(gemm, context);
}

}  // namespace terrace::kernels::cpu
