// RMSNorm and its gradient, of rows or of the heads of rows. The gradient of the weight is summed
// first, because dx may lie in the memory of dy.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_packs.cuh"

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
  float offset;  // added to the weight
  bool wide;
};

__global__ void __launch_bounds__(kElementThreads) RmsNormKernel(RmsNormArguments a) {
  const int64_t columns = a.vectors.columns;
  for (int64_t v = blockIdx.x; v < a.count; v += gridDim.x) {
    const RowPart part = {a.vectors.Row(v), a.vectors.Column(v, 0), columns, a.wide};
    float x[kPack], weight[kPack];
    float squares = 0;
    for (int64_t c = FirstPack(); c < columns; c += PackStep()) {
      LoadRowPack(a.x, part, c, x);
#pragma unroll
      for (int i = 0; i < kPack; ++i) squares += x[i] * x[i];
    }
    const float rstd = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(columns) + a.epsilon);
    for (int64_t c = FirstPack(); c < columns; c += PackStep()) {
      LoadRowPack(a.x, part, c, x);
      LoadVectorPack(a.weight, part, c, weight);
#pragma unroll
      for (int i = 0; i < kPack; ++i) x[i] = x[i] * rstd * (weight[i] + a.offset);
      StoreRowPack(a.y, part, c, x);
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
  float offset;  // added to the weight
  bool wide;
};

// Of sharing memory the same holds as in layer_norm.cu.
__global__ void __launch_bounds__(kElementThreads) RmsNormGradKernel(RmsNormGradArguments a) {
  const int64_t columns = a.vectors.columns;
  for (int64_t v = blockIdx.x; v < a.count; v += gridDim.x) {
    const RowPart part = {a.vectors.Row(v), a.vectors.Column(v, 0), columns, a.wide};
    const float rstd = a.rstd[v];
    float dy[kPack], x[kPack], weight[kPack], residual[kPack] = {};
    float dot = 0;
    for (int64_t c = FirstPack(); c < columns; c += PackStep()) {
      LoadRowPack(a.dy, part, c, dy);
      LoadRowPack(a.x, part, c, x);
      LoadVectorPack(a.weight, part, c, weight);
#pragma unroll
      for (int i = 0; i < kPack; ++i) dot += dy[i] * (weight[i] + a.offset) * (x[i] * rstd);
    }
    const float mean_gx = BlockSum(dot) / static_cast<float>(columns);
    for (int64_t c = FirstPack(); c < columns; c += PackStep()) {
      LoadRowPack(a.dy, part, c, dy);
      LoadRowPack(a.x, part, c, x);
      LoadVectorPack(a.weight, part, c, weight);
      if (a.residual.data != nullptr) LoadRowPack(a.residual, part, c, residual);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float g = dy[i] * (weight[i] + a.offset);
        x[i] = rstd * (g - x[i] * rstd * mean_gx) + residual[i];
      }
      StoreRowPack(a.dx, part, c, x);
    }
  }
}

// Whether vectors start at whole 16 bytes in rows that do.
bool StartWide(const Vectors& vectors) {
  return vectors.per_row == 1 || vectors.columns % kPack == 0;
}

struct RmsNormTerm {
  static constexpr int kSums = 1;
  Operand dy, x;
  const float* rstd;
  Vectors vectors;
  bool wide;
  __device__ void Terms(int64_t vector, int64_t column, float (*terms)[kPack]) const {
    const RowPart part = {vectors.Row(vector), vectors.Column(vector, 0), vectors.columns, wide};
    float x_pack[kPack];
    LoadRowPack(dy, part, column, terms[0]);
    LoadRowPack(x, part, column, x_pack);
    const float scale = rstd[vector];
#pragma unroll
    for (int i = 0; i < kPack; ++i) terms[0][i] *= x_pack[i] * scale;
  }
};

}  // namespace

Status RmsNorm(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& norm = std::get<NormAttrs>(attrs);
  const TensorView& x = operands[0];
  const Vectors vectors = VectorsOf(x);
  const RmsNormArguments arguments = {
      .x = OperandOf(x),
      .y = OperandOf(operands[2]),
      .weight = operands[1].as<const float>(),
      .rstd = operands[3].as<float>(),
      .count = x.rows() * vectors.per_row,
      .vectors = vectors,
      .epsilon = norm.epsilon,
      .offset = norm.unit_offset ? 1.0f : 0.0f,
      .wide =
          StartWide(vectors) && AllowsWideRows({x, operands[2]}, {operands[1].as<const float>()})};
  return Launch("rms_norm", RmsNormKernel, RowPackShape(arguments.count, vectors.columns), context,
                arguments);
}

Status RmsNormGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                   const Context& context) {
  const auto& norm = std::get<NormAttrs>(attrs);
  const TensorView& x = operands[1];
  const Vectors vectors = VectorsOf(x);
  const RmsNormGradArguments arguments = {
      .dy = OperandOf(operands[0]),
      .x = OperandOf(x),
      .residual = OperandOf(operands[4]),
      .dx = OperandOf(operands[5]),
      .weight = operands[2].as<const float>(),
      .rstd = operands[3].as<const float>(),
      .count = x.rows() * vectors.per_row,
      .vectors = vectors,
      .offset = norm.unit_offset ? 1.0f : 0.0f,
      .wide = StartWide(vectors) && AllowsWideRows({operands[0], x, operands[4], operands[5]},
                                                   {operands[2].as<const float>()})};
  const ColumnSums sums = {.rows = arguments.count,
                           .columns = vectors.columns,
                           .out = {operands[6].as<float>()},
                           .accumulate = norm.accumulate};
  Status status = LaunchColumnSums(
      "rms_norm_grad", sums,
      RmsNormTerm{arguments.dy, arguments.x, arguments.rstd, vectors, arguments.wide}, context);
  if (!status.ok()) return status;
  return Launch("rms_norm_grad", RmsNormGradKernel, RowPackShape(arguments.count, vectors.columns),
                context, arguments);
}

}  // namespace terrace::kernels::cuda
