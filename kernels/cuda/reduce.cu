// Sums over whole tensors and over statistics, and what the optimizer step derives from them. Cut
// by the shape alone and added in one order: the same bits on every device.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_packs.cuh"
#include "kernels/cuda/workspace.h"

namespace terrace::kernels::cuda {
namespace {

constexpr int kSumThreads = 256;

struct SquaresArguments {
  Operand x;
  int64_t count, blocks;
  double* parts;
  bool wide;
};

// A thread's share of a block is short enough for an f32 sum.
__global__ void __launch_bounds__(kSumThreads) SquaresKernel(SquaresArguments a) {
  for (int64_t block = blockIdx.x; block < a.blocks; block += gridDim.x) {
    const int64_t begin = block * kSumBlock;
    const int64_t end = begin + kSumBlock < a.count ? begin + kSumBlock : a.count;
    static_assert(kSumBlock % kPack == 0);
    const RowPart whole = {0, 0, a.count, a.wide};
    float squares = 0;
    for (int64_t first = begin + FirstPack(); first < end; first += PackStep()) {
      float x[kPack];
      LoadRowPack(a.x, whole, first, x);
#pragma unroll
      for (int i = 0; i < kPack; ++i) squares += x[i] * x[i];
    }
    const double total = BlockSum(static_cast<double>(squares));
    if (threadIdx.x == 0) a.parts[block] = total;
  }
}

// The sum of a list by one block, in every thread.
template <typename T>
__device__ double SumOfList(const T* values, int64_t count, int64_t stride) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += values[i * stride];
  return BlockSum(sum);
}

__global__ void __launch_bounds__(kSumThreads)
    FinishSquaresKernel(const double* parts, int64_t count, float scale, float* out) {
  const double total = SumOfList(parts, count, 1);
  if (threadIdx.x == 0) *out = static_cast<float>(total * scale);
}

__global__ void __launch_bounds__(kSumThreads)
    SumKernel(const float* x, int64_t count, float* out) {
  const double total = SumOfList(x, count, 1);
  if (threadIdx.x == 0) *out = static_cast<float>(total);
}

__global__ void __launch_bounds__(kSumThreads)
    SumStatsKernel(const float* stats, int64_t rows, float* total) {
  const double loss = SumOfList(stats, rows, 2);
  const double tokens = SumOfList(stats + 1, rows, 2);
  if (threadIdx.x != 0) return;
  total[0] = static_cast<float>(loss);
  total[1] = static_cast<float>(tokens);
}

__global__ void __launch_bounds__(kSumThreads)
    GradScaleKernel(const float* squares, int64_t count, const float* total, float clip_grad_norm,
                    const float* schedule, float* out) {
  const double sum = SumOfList(squares, count, 1);
  if (threadIdx.x != 0) return;
  const double loss = total[0], tokens = total[1], clip = clip_grad_norm;
  const double factor = schedule == nullptr ? 1.0 : schedule[3];
  const double norm = sqrt(sum) / (factor * tokens);
  const bool skip = !isfinite(norm) || tokens <= 0;
  const double shrink = clip > 0 && norm > clip ? clip / norm : 1.0;
  out[0] = skip ? 0.0f : static_cast<float>(shrink / (factor * tokens));
  out[1] = static_cast<float>(norm);
  out[2] = static_cast<float>(loss / tokens);
  out[3] = skip ? 1.0f : 0.0f;
}

constexpr LaunchShape kOneBlock = {.threads = kSumThreads};

}  // namespace

Status SquaredNorm(const OpAttrs& attrs, std::span<const TensorView> operands,
                   const Context& context) {
  const TensorView& x = operands[0];
  const SquaresArguments arguments = {.x = OperandOf(x),
                                      .count = x.Elements(),
                                      .blocks = DivideUp(x.Elements(), kSumBlock),
                                      .parts = reinterpret_cast<double*>(context.workspace),
                                      .wide = AllowsWide(x, true)};
  LaunchShape shape = RowShape(arguments.blocks, kSumBlock);
  shape.threads = kSumThreads;
  Status status = Launch("squared_norm", SquaresKernel, shape, context, arguments);
  if (!status.ok()) return status;
  return Launch("squared_norm", FinishSquaresKernel, kOneBlock, context,
                static_cast<const double*>(arguments.parts), arguments.blocks,
                std::get<ScaleAttrs>(attrs).scale, operands[1].as<float>());
}

Status Sum(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  return Launch("sum", SumKernel, kOneBlock, context, operands[0].as<const float>(),
                operands[0].rows(), operands[1].as<float>());
}

Status SumStats(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  return Launch("sum_stats", SumStatsKernel, kOneBlock, context, operands[0].as<const float>(),
                operands[0].rows(), operands[1].as<float>());
}

Status GradScale(const OpAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context) {
  const float* schedule = operands[3].absent() ? nullptr : operands[3].as<const float>();
  return Launch("grad_scale", GradScaleKernel, kOneBlock, context, operands[0].as<const float>(),
                operands[0].rows(), operands[1].as<const float>(),
                std::get<ClipAttrs>(attrs).clip_grad_norm, schedule, operands[2].as<float>());
}

}  // namespace terrace::kernels::cuda
