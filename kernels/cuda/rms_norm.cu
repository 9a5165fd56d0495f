// RMSNorm and its gradient, of rows or of the heads of rows. The gradient of the weight is summed
// first, because dx may lie in the memory of dy.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {
namespace {

// The vectors that are normalised: `per_row` of them lie in each row.
struct Vectors {
  int64_t per_row, columns;

  __device__ int64_t Row(int64_t vector) const { return per_row == 1 ? vector : vector / per_row; }
  __device__ int64_t Column(int64_t vector, int64_t c) const {
    return per_row == 1 ? c : vector % per_row * columns + c;
  }
};

Vectors VectorsOf(const TensorView& view) {
  const int64_t columns = view.size[view.dims - 1];
  return {view.RowElements() / columns, columns};
}

struct RmsNormArguments {
  Operand x, y;
  const float* weight;
  float* rstd;
  int64_t count;
  Vectors vectors;
  float epsilon;
};

__global__ void RmsNormKernel(RmsNormArguments a) {
  const int64_t columns = a.vectors.columns;
  for (int64_t v = blockIdx.x; v < a.count; v += gridDim.x) {
    const int64_t row = a.vectors.Row(v), first = a.vectors.Column(v, 0);
    float squares = 0;
    for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
      const float x = a.x.Load(row, first + c);
      squares += x * x;
    }
    const float rstd = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(columns) + a.epsilon);
    for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
      a.y.Store(row, first + c, a.x.Load(row, first + c) * rstd * a.weight[c]);
    }
    if (threadIdx.x == 0) a.rstd[v] = rstd;
  }
}

struct RmsNormGradArguments {
  Operand dy, x, residual, dx;
  const float* weight;
  const float* rstd;
  int64_t count;
  Vectors vectors;
};

// Of sharing memory the same holds as in layer_norm.cu.
__global__ void RmsNormGradKernel(RmsNormGradArguments a) {
  const int64_t columns = a.vectors.columns;
  for (int64_t v = blockIdx.x; v < a.count; v += gridDim.x) {
    const int64_t row = a.vectors.Row(v), first = a.vectors.Column(v, 0);
    const float rstd = a.rstd[v];
    float dot = 0;
    for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
      const float g = a.dy.Load(row, first + c) * a.weight[c];
      dot += g * (a.x.Load(row, first + c) * rstd);
    }
    const float mean_gx = BlockSum(dot) / static_cast<float>(columns);
    for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
      const float x_hat = a.x.Load(row, first + c) * rstd;
      float dx = rstd * (a.dy.Load(row, first + c) * a.weight[c] - x_hat * mean_gx);
      if (a.residual.data != nullptr) dx += a.residual.Load(row, first + c);
      a.dx.Store(row, first + c, dx);
    }
  }
}

struct RmsNormTerm {
  static constexpr int kSums = 1;
  Operand dy, x;
  const float* rstd;
  Vectors vectors;
  __device__ void Terms(int64_t vector, int64_t column, float* terms) const {
    const int64_t row = vectors.Row(vector), at = vectors.Column(vector, column);
    terms[0] = dy.Load(row, at) * (x.Load(row, at) * rstd[vector]);
  }
};

}  // namespace

Status RmsNorm(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const TensorView& x = operands[0];
  const Vectors vectors = VectorsOf(x);
  const RmsNormArguments arguments = {.x = OperandOf(x),
                                      .y = OperandOf(operands[2]),
                                      .weight = operands[1].as<const float>(),
                                      .rstd = operands[3].as<float>(),
                                      .count = x.rows() * vectors.per_row,
                                      .vectors = vectors,
                                      .epsilon = std::get<NormAttrs>(attrs).epsilon};
  return Launch("rms_norm", RmsNormKernel, RowShape(arguments.count, vectors.columns), context,
                arguments);
}

Status RmsNormGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                   const Context& context) {
  const TensorView& x = operands[1];
  const Vectors vectors = VectorsOf(x);
  const RmsNormGradArguments arguments = {.dy = OperandOf(operands[0]),
                                          .x = OperandOf(x),
                                          .residual = OperandOf(operands[4]),
                                          .dx = OperandOf(operands[5]),
                                          .weight = operands[2].as<const float>(),
                                          .rstd = operands[3].as<const float>(),
                                          .count = x.rows() * vectors.per_row,
                                          .vectors = vectors};
  const ColumnSums sums = {.rows = arguments.count,
                           .columns = vectors.columns,
                           .out = {operands[6].as<float>()},
                           .accumulate = std::get<NormAttrs>(attrs).accumulate};
  Status status =
      LaunchColumnSums("rms_norm_grad", sums,
                       RmsNormTerm{arguments.dy, arguments.x, arguments.rstd, vectors}, context);
  if (!status.ok()) return status;
  return Launch("rms_norm_grad", RmsNormGradKernel, RowShape(arguments.count, vectors.columns),
                context, arguments);
}

}  // namespace terrace::kernels::cuda
