// Cross-entropy over logits whose columns are split over ranks: what one rank says of its columns,
// the loss from what all ranks say, and the gradient in place.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <variant>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.h"

namespace terrace::kernels::cuda {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr int kLossThreads = 256;

// The columns of the vocabulary that a shard holds: `count` from `first` on; the rest are padding.
struct Shard {
  int64_t first, count;

  // Of target `target`, or -1 where another shard holds it.
  __device__ int64_t Column(int32_t target) const {
    return target >= first && target < first + count ? target - first : -1;
  }
};

Shard ShardOf(const CrossEntropyAttrs& attrs) {
  const int64_t first = attrs.shard * attrs.shard_rows;
  return {first, std::clamp<int64_t>(attrs.vocabulary - first, 0, attrs.shard_rows)};
}

struct CrossEntropyArguments {
  float* logits;
  int64_t row_stride;
  const int32_t* targets;
  float* rows;  // [n,3] written, or [shards,n,3] read
  int64_t shards, shard_stride;
  int64_t count, columns, vocabulary;
  Shard shard;
  LossTerms terms;
  Fault* faults;

  // What each logit and, beside that, the target's adds to the score of its row.
  __device__ float each() const { return terms.label_smoothing / static_cast<float>(vocabulary); }
  __device__ float own() const { return 1.0f - terms.label_smoothing; }
  __device__ float Logit(float x) const { return SoftcapOf(x, terms.softcap); }
};

__global__ void RowsKernel(CrossEntropyArguments a) {
  for (int64_t row = blockIdx.x; row < a.count; row += gridDim.x) {
    const float* z = a.logits + row * a.row_stride;
    const int32_t target = a.targets[row];
    float top = kLowest;
    for (int64_t c = threadIdx.x; c < a.shard.count; c += blockDim.x) top = fmaxf(top, z[c]);
    top = a.shard.count > 0 ? a.Logit(BlockReduce(top, kLowest, Largest())) : kLowest;
    float sum = 0;
    for (int64_t c = threadIdx.x; c < a.shard.count; c += blockDim.x)
      sum += expf(a.Logit(z[c]) - top);
    sum = BlockSum(sum);
    float logits = 0;
    if (a.each() > 0) {
      for (int64_t c = threadIdx.x; c < a.shard.count; c += blockDim.x) logits += a.Logit(z[c]);
      logits = BlockSum(logits);
    }
    if (threadIdx.x != 0) continue;
    if (target >= a.vocabulary) NoteFault(a.faults, Op::kCrossEntropyRows, row);
    const int64_t column = a.shard.Column(target);
    float* out = a.rows + 3 * row;
    out[0] = top;
    out[1] = sum;
    out[2] = column < 0 ? 0.0f : a.own() * a.Logit(z[column]);
    if (target >= 0) out[2] += a.each() * logits;
  }
}

// One row's statistics of all shards together.
struct WholeRow {
  float top;
  double sum, score;

  __device__ WholeRow(const CrossEntropyArguments& a, int64_t row)
      : top(kLowest), sum(0), score(0) {
    const float* at = a.rows + 3 * row;
    for (int64_t s = 0; s < a.shards; ++s) top = fmaxf(top, at[s * a.shard_stride]);
    for (int64_t s = 0; s < a.shards; ++s) {
      const float* part = at + s * a.shard_stride;
      if (part[1] != 0) sum += part[1] * exp(static_cast<double>(part[0]) - top);
      score += part[2];
    }
  }
  __device__ double LogZ() const { return log(sum) + top; }
};

// One block: the rows are few beside the logits that they came from.
__global__ void __launch_bounds__(kLossThreads)
    LossKernel(CrossEntropyArguments a, bool accumulate, float* stats, float* losses) {
  double loss = 0, counted = 0;
  for (int64_t row = threadIdx.x; row < a.count; row += blockDim.x) {
    double of_row = 0;
    if (a.targets[row] >= 0) {
      const WholeRow whole(a, row);
      const double log_z = whole.LogZ();
      of_row = log_z - whole.score + a.terms.z_loss * log_z * log_z;
      counted += 1;
    }
    if (losses != nullptr) losses[row] = static_cast<float>(of_row);
    loss += of_row;
  }
  loss = BlockSum(loss);
  counted = BlockSum(counted);
  if (threadIdx.x != 0) return;
  stats[0] = static_cast<float>(loss + (accumulate ? stats[0] : 0.0f));
  stats[1] = static_cast<float>(counted + (accumulate ? stats[1] : 0.0f));
}

__global__ void GradKernel(CrossEntropyArguments a, const float* schedule, const float* weights) {
  const float scheduled = schedule == nullptr ? 1.0f : schedule[3];
  for (int64_t row = blockIdx.x; row < a.count; row += gridDim.x) {
    const float factor = weights == nullptr ? scheduled : scheduled * weights[row];
    float* z = a.logits + row * a.row_stride;
    const int32_t target = a.targets[row];
    const int64_t kept = target < 0 ? 0 : a.shard.count;
    const WholeRow whole(a, row);
    const double of_z = 1.0 + 2.0 * a.terms.z_loss * whole.LogZ();
    const float scale = static_cast<float>(factor / whole.sum * of_z);
    const int64_t column = a.shard.Column(target);
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
      const float logit = a.Logit(z[c]);
      float gradient = c < kept ? expf(logit - whole.top) * scale - a.each() * factor : 0.0f;
      if (c < kept && c == column) gradient -= a.own() * factor;
      z[c] = c < kept ? gradient * SoftcapSlope(logit, a.terms.softcap) : 0.0f;
    }
  }
}

}  // namespace

Status CrossEntropyRows(const OpAttrs& attrs, std::span<const TensorView> operands,
                        const Context& context) {
  const auto& entropy = std::get<CrossEntropyAttrs>(attrs);
  const TensorView& logits = operands[0];
  const CrossEntropyArguments arguments = {.logits = logits.as<float>(),
                                           .row_stride = logits.row_stride,
                                           .targets = operands[1].as<const int32_t>(),
                                           .rows = operands[2].as<float>(),
                                           .shards = 1,
                                           .shard_stride = 0,
                                           .count = logits.rows(),
                                           .columns = entropy.shard_rows,
                                           .vocabulary = entropy.vocabulary,
                                           .shard = ShardOf(entropy),
                                           .terms = entropy.terms,
                                           .faults = context.faults};
  return Launch("cross_entropy_rows", RowsKernel, RowShape(arguments.count, arguments.columns),
                context, arguments);
}

Status CrossEntropyLoss(const OpAttrs& attrs, std::span<const TensorView> operands,
                        const Context& context) {
  const auto& entropy = std::get<CrossEntropyAttrs>(attrs);
  const TensorView& rows = operands[1];
  const CrossEntropyArguments arguments = {.logits = nullptr,
                                           .row_stride = 0,
                                           .targets = operands[0].as<const int32_t>(),
                                           .rows = rows.as<float>(),
                                           .shards = rows.size[0],
                                           .shard_stride = rows.row_stride,
                                           .count = operands[0].rows(),
                                           .columns = entropy.shard_rows,
                                           .vocabulary = entropy.vocabulary,
                                           .shard = ShardOf(entropy),
                                           .terms = entropy.terms,
                                           .faults = context.faults};
  return Launch("cross_entropy_loss", LossKernel, LaunchShape{.threads = kLossThreads}, context,
                arguments, entropy.accumulate, operands[2].as<float>(),
                operands[3].absent() ? nullptr : operands[3].as<float>());
}

Status CrossEntropyGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                        const Context& context) {
  const auto& entropy = std::get<CrossEntropyAttrs>(attrs);
  const TensorView& rows = operands[1];
  const TensorView& logits = operands[2];
  const CrossEntropyArguments arguments = {.logits = logits.as<float>(),
                                           .row_stride = logits.row_stride,
                                           .targets = operands[0].as<const int32_t>(),
                                           .rows = rows.as<float>(),
                                           .shards = rows.size[0],
                                           .shard_stride = rows.row_stride,
                                           .count = logits.rows(),
                                           .columns = entropy.shard_rows,
                                           .vocabulary = entropy.vocabulary,
                                           .shard = ShardOf(entropy),
                                           .terms = entropy.terms,
                                           .faults = context.faults};
  const float* schedule = operands[3].absent() ? nullptr : operands[3].as<const float>();
  return Launch("cross_entropy_grad", GradKernel, RowShape(arguments.count, arguments.columns),
                context, arguments, schedule,
                operands[4].absent() ? nullptr : operands[4].as<const float>());
}

}  // namespace terrace::kernels::cuda
