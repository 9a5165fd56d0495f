// LayerNorm and its gradient. A block takes a row; the gradients of weight and bias are summed
// first, because dx may lie in the memory of dy.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_packs.cuh"

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
  bool wide;
};

__global__ void __launch_bounds__(kElementThreads) LayerNormKernel(LayerNormArguments a) {
  const float columns = static_cast<float>(a.columns);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const RowPart part = {row, 0, a.columns, a.wide};
    float x[kPack], weight[kPack], bias[kPack] = {};
    float sum = 0;
    for (int64_t c = FirstPack(); c < a.columns; c += PackStep()) {
      LoadRowPack(a.x, part, c, x);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum += x[i];
    }
    const float mean = BlockSum(sum) / columns;
    float squares = 0;
    for (int64_t c = FirstPack(); c < a.columns; c += PackStep()) {
      LoadRowPack(a.x, part, c, x);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float centred = c + i < a.columns ? x[i] - mean : 0.0f;
        squares += centred * centred;
      }
    }
    const float rstd = 1.0f / sqrtf(BlockSum(squares) / columns + a.epsilon);
    for (int64_t c = FirstPack(); c < a.columns; c += PackStep()) {
      LoadRowPack(a.x, part, c, x);
      LoadVectorPack(a.weight, part, c, weight);
      if (a.bias != nullptr) LoadVectorPack(a.bias, part, c, bias);
#pragma unroll
      for (int i = 0; i < kPack; ++i) x[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
      StoreRowPack(a.y, part, c, x);
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
  bool wide;
};

// dx of a row may lie in the memory of the same row of dy or residual: a thread has read its
// columns of all of them, and the block its sums, before it writes.
__global__ void __launch_bounds__(kElementThreads) LayerNormGradKernel(LayerNormGradArguments a) {
  const float columns = static_cast<float>(a.columns);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const RowPart part = {row, 0, a.columns, a.wide};
    const float mean = a.mean[row], rstd = a.rstd[row];
    float dy[kPack], x[kPack], weight[kPack], residual[kPack] = {};
    float sum_g = 0, sum_gx = 0;
    for (int64_t c = FirstPack(); c < a.columns; c += PackStep()) {
      LoadRowPack(a.dy, part, c, dy);
      LoadRowPack(a.x, part, c, x);
      LoadVectorPack(a.weight, part, c, weight);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float g = dy[i] * weight[i];
        sum_g += g;
        sum_gx += g * ((x[i] - mean) * rstd);
      }
    }
    const float mean_g = BlockSum(sum_g) / columns;
    const float mean_gx = BlockSum(sum_gx) / columns;
    for (int64_t c = FirstPack(); c < a.columns; c += PackStep()) {
      LoadRowPack(a.dy, part, c, dy);
      LoadRowPack(a.x, part, c, x);
      LoadVectorPack(a.weight, part, c, weight);
      if (a.residual.data != nullptr) LoadRowPack(a.residual, part, c, residual);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float x_hat = (x[i] - mean) * rstd;
        x[i] = rstd * (dy[i] * weight[i] - mean_g - x_hat * mean_gx) + residual[i];
      }
      StoreRowPack(a.dx, part, c, x);
    }
  }
}

// Of the weight and, with a second sum, of the bias.
template <int kCount>
struct LayerNormTerm {
  static constexpr int kSums = kCount;
  Operand dy, x;
  const float* mean;
  const float* rstd;
  int64_t columns;
  bool wide;
  __device__ void Terms(int64_t row, int64_t column, float (*terms)[kPack]) const {
    const RowPart part = {row, 0, columns, wide};
    float dy_pack[kPack], x_pack[kPack];
    LoadRowPack(dy, part, column, dy_pack);
    LoadRowPack(x, part, column, x_pack);
    const float row_mean = mean[row], row_rstd = rstd[row];
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      terms[0][i] = dy_pack[i] * ((x_pack[i] - row_mean) * row_rstd);
      if constexpr (kCount == 2) terms[1][i] = dy_pack[i];
    }
  }
};

template <int kCount>
Status SumGradients(const LayerNormGradArguments& a, const ColumnSums& sums,
                    const Context& context) {
  const LayerNormTerm<kCount> term = {a.dy, a.x, a.mean, a.rstd, a.columns, a.wide};
  return LaunchColumnSums("layer_norm_grad", sums, term, context);
}

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
      .epsilon = std::get<NormAttrs>(attrs).epsilon,
      .wide = AllowsWideRows({x, operands[3]},
                             {operands[1].as<const float>(), operands[2].as<const float>()})};
  return Launch("layer_norm", LayerNormKernel, RowPackShape(arguments.rows, arguments.columns),
                context, arguments);
}

Status LayerNormGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                     const Context& context) {
  const TensorView& dbias = operands[8];
  const LayerNormGradArguments arguments = {
      .dy = OperandOf(operands[0]),
      .x = OperandOf(operands[1]),
      .residual = OperandOf(operands[5]),
      .dx = OperandOf(operands[6]),
      .weight = operands[2].as<const float>(),
      .mean = operands[3].as<const float>(),
      .rstd = operands[4].as<const float>(),
      .rows = operands[1].rows(),
      .columns = operands[1].size[1],
      .wide = AllowsWideRows({operands[0], operands[1], operands[5], operands[6]},
                             {operands[2].as<const float>()})};
  const ColumnSums sums = {
      .rows = arguments.rows,
      .columns = arguments.columns,
      .out = {operands[7].as<float>(), dbias.absent() ? nullptr : dbias.as<float>()},
      .accumulate = std::get<NormAttrs>(attrs).accumulate};
  Status status = dbias.absent() ? SumGradients<1>(arguments, sums, context)
                                 : SumGradients<2>(arguments, sums, context);
  if (!status.ok()) return status;
  return Launch("layer_norm_grad", LayerNormGradKernel,
                RowPackShape(arguments.rows, arguments.columns), context, arguments);
}

}  // namespace terrace::kernels::cuda
