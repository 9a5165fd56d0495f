// LayerNorm and its gradient. A block takes a row; the gradients of weight and bias are summed
// first, because dx may lie in the memory of dy.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {
namespace {

struct LayerNormArguments {
  Operand x, y;
  const float* weight;
  const float* bias;  // or null
  float* mean;
  float* rstd;
  int64_t rows, columns;
  float epsilon;
};

__global__ void LayerNormKernel(LayerNormArguments a) {
  const float columns = static_cast<float>(a.columns);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    float sum = 0;
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) sum += a.x.Load(row, c);
    const float mean = BlockSum(sum) / columns;
    float squares = 0;
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
      const float centred = a.x.Load(row, c) - mean;
      squares += centred * centred;
    }
    const float rstd = 1.0f / sqrtf(BlockSum(squares) / columns + a.epsilon);
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
      const float scaled = (a.x.Load(row, c) - mean) * rstd * a.weight[c];
      a.y.Store(row, c, a.bias == nullptr ? scaled : scaled + a.bias[c]);
    }
    if (threadIdx.x == 0) {
      a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
  }
}

struct LayerNormGradArguments {
  Operand dy, x, residual, dx;
  const float* weight;
  const float* mean;
  const float* rstd;
  int64_t rows, columns;
};

// dx of a row may lie in the memory of the same row of dy or residual: a thread has read its
// columns of all of them, and the block its sums, before it writes.
__global__ void LayerNormGradKernel(LayerNormGradArguments a) {
  const float columns = static_cast<float>(a.columns);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float mean = a.mean[row], rstd = a.rstd[row];
    float sum_g = 0, sum_gx = 0;
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
      const float g = a.dy.Load(row, c) * a.weight[c];
      sum_g += g;
      sum_gx += g * ((a.x.Load(row, c) - mean) * rstd);
    }
    const float mean_g = BlockSum(sum_g) / columns;
    const float mean_gx = BlockSum(sum_gx) / columns;
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
      const float x_hat = (a.x.Load(row, c) - mean) * rstd;
      const float g = a.dy.Load(row, c) * a.weight[c];
      float dx = rstd * (g - mean_g - x_hat * mean_gx);
      if (a.residual.data != nullptr) dx += a.residual.Load(row, c);
      a.dx.Store(row, c, dx);
    }
  }
}

struct LayerNormTerm {
  static constexpr int kSums = 2;
  Operand dy, x;
  const float* mean;
  const float* rstd;
  __device__ void Terms(int64_t row, int64_t column, float* terms) const {
    const float dy_i = dy.Load(row, column);
    terms[0] = dy_i * ((x.Load(row, column) - mean[row]) * rstd[row]);
    terms[1] = dy_i;
  }
};

// The same without a bias.
struct LayerNormWeightTerm : LayerNormTerm {
  static constexpr int kSums = 1;
  __device__ void Terms(int64_t row, int64_t column, float* terms) const {
    terms[0] = dy.Load(row, column) * ((x.Load(row, column) - mean[row]) * rstd[row]);
  }
};

}  // namespace

Status LayerNorm(const OpAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context) {
  const TensorView& x = operands[0];
  const LayerNormArguments arguments = {
      .x = OperandOf(x),
      .y = OperandOf(operands[3]),
      .weight = operands[1].as<const float>(),
      .bias = operands[2].absent() ? nullptr : operands[2].as<const float>(),
      .mean = operands[4].as<float>(),
      .rstd = operands[5].as<float>(),
      .rows = x.rows(),
      .columns = x.size[1],
      .epsilon = std::get<NormAttrs>(attrs).epsilon};
  return Launch("layer_norm", LayerNormKernel, RowShape(arguments.rows, arguments.columns), context,
                arguments);
}

Status LayerNormGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                     const Context& context) {
  const TensorView& dbias = operands[8];
  const LayerNormGradArguments arguments = {.dy = OperandOf(operands[0]),
                                            .x = OperandOf(operands[1]),
                                            .residual = OperandOf(operands[5]),
                                            .dx = OperandOf(operands[6]),
                                            .weight = operands[2].as<const float>(),
                                            .mean = operands[3].as<const float>(),
                                            .rstd = operands[4].as<const float>(),
                                            .rows = operands[1].rows(),
                                            .columns = operands[1].size[1]};
  const ColumnSums sums = {
      .rows = arguments.rows,
      .columns = arguments.columns,
      .out = {operands[7].as<float>(), dbias.absent() ? nullptr : dbias.as<float>()},
      .accumulate = std::get<NormAttrs>(attrs).accumulate};
  const LayerNormTerm term = {arguments.dy, arguments.x, arguments.mean, arguments.rstd};
  Status status =
      dbias.absent() ? LaunchColumnSums("layer_norm_grad", sums, LayerNormWeightTerm{term}, context)
                     : LaunchColumnSums("layer_norm_grad", sums, term, context);
  if (!status.ok()) return status;
  return Launch("layer_norm_grad", LayerNormGradKernel, RowShape(arguments.rows, arguments.columns),
                context, arguments);
}

}  // namespace terrace::kernels::cuda
