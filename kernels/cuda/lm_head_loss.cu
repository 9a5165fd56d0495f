// The fused LM head and cross-entropy: logits of a chunk of rows, their softmax in place, and the
// products that need them, so that a chunk is the only logits there ever are.
//
// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <variant>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/row_packs.cuh"

namespace terrace::kernels::cuda {
namespace {

constexpr int kStatsThreads = 256;
constexpr float kLowest = std::numeric_limits<float>::lowest();

struct LossArguments {
  Operand logits;
  const int32_t* targets;  // of this chunk
  const float* schedule;   // or null: the gradient is multiplied by 1
  const float* weights;    // of this chunk, or null: each row's is 1
  double* losses;          // of this chunk
  int64_t rows, vocab, first_row;
  LossTerms terms;
  bool grad;
  bool wide;  // the chunk's rows start at whole 16 bytes
  Op op;
  Fault* faults;
};

// The largest of a row's logits so far and the sum of exponentials relative to it.
struct RunningSoftmax {
  float top = kLowest, sum = 0;

  __device__ void Add(const float* z, int count) {
    float largest = top;
#pragma unroll
    for (int i = 0; i < kPack; ++i) largest = i < count ? fmaxf(largest, z[i]) : largest;
    sum *= expf(top - largest);
    top = largest;
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += i < count ? expf(z[i] - top) : 0.0f;
  }
};

// The pack of row `part` from column `c` on, as the loss takes it.
__device__ void LoadLogits(const LossArguments& a, const RowPart& part, int64_t c, float* z) {
  LoadRowPack(a.logits, part, c, z);
  if (a.terms.softcap == 0) return;
#pragma unroll
  for (int i = 0; i < kPack; ++i) z[i] = SoftcapOf(z[i], a.terms.softcap);
}

__device__ int PackCount(int64_t column, int64_t columns) {
  return columns - column < kPack ? static_cast<int>(columns - column) : static_cast<int>(kPack);
}

// The loss of each row; with `grad` also turns the row into its gradient, times the schedule's
// factor, zeros where the target does not count. Reads the row once for the loss, once
// more for the gradient: it is far larger than a cache's share.
__global__ void __launch_bounds__(kElementThreads) RowLossKernel(LossArguments a) {
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const RowPart part = {row, 0, a.vocab, a.wide};
    const int32_t target = a.targets[row];
    float z[kPack] = {};
    if (threadIdx.x == 0 && target >= a.vocab) NoteFault(a.faults, a.op, a.first_row + row);
    if (target < 0 || target >= a.vocab) {
      for (int64_t c = FirstPack(); a.grad && c < a.vocab; c += PackStep()) {
        StoreRowPack(a.logits, part, c, z);
      }
      if (threadIdx.x == 0) a.losses[row] = 0;
      continue;
    }
    const float each = a.terms.label_smoothing / static_cast<float>(a.vocab);
    const float own = 1.0f - a.terms.label_smoothing;
    RunningSoftmax mine;
    float logits = 0;
    for (int64_t c = FirstPack(); c < a.vocab; c += PackStep()) {
      LoadLogits(a, part, c, z);
      const int count = PackCount(c, a.vocab);
      mine.Add(z, count);
#pragma unroll
      for (int i = 0; i < kPack; ++i) logits += i < count ? z[i] : 0.0f;
    }
    const float top = BlockReduce(mine.top, kLowest, Largest());
    const float sum = BlockSum(mine.sum * expf(mine.top - top));
    const double log_z = log(static_cast<double>(sum)) + top;
    if (each > 0) logits = BlockSum(logits);
    if (threadIdx.x == 0) {
      const double target_logit = SoftcapOf(a.logits.Load(row, target), a.terms.softcap);
      const double score = each == 0 ? target_logit : own * target_logit + each * logits;
      a.losses[row] = log_z - score + a.terms.z_loss * log_z * log_z;
    }
    if (!a.grad) continue;
    __syncthreads();  // the target's logit has been read
    const float scheduled = a.schedule == nullptr ? 1.0f : a.schedule[3];
    const float factor = a.weights == nullptr ? scheduled : scheduled * a.weights[row];
    const float scale = factor / sum * static_cast<float>(1 + 2 * a.terms.z_loss * log_z);
    for (int64_t c = FirstPack(); c < a.vocab; c += PackStep()) {
      LoadLogits(a, part, c, z);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float slope = SoftcapSlope(z[i], a.terms.softcap);
        const float p = expf(z[i] - top) * scale;
        z[i] = (p - (c + i == target ? own + each : each) * factor) * slope;
      }
      StoreRowPack(a.logits, part, c, z);
    }
  }
}

__global__ void __launch_bounds__(kStatsThreads)
    StatsKernel(const double* losses, const int32_t* targets, int64_t rows, float* stats,
                float* of_rows) {
  double loss = 0, counted = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    loss += losses[row];
    if (of_rows != nullptr) of_rows[row] = static_cast<float>(losses[row]);
    counted += targets[row] >= 0 ? 1 : 0;
  }
  loss = BlockSum(loss);
  counted = BlockSum(counted);
  if (threadIdx.x != 0) return;
  stats[0] = static_cast<float>(loss);
  stats[1] = static_cast<float>(counted);
}

Matrix RowsFrom(const TensorView& view, int64_t first) {
  return {view.as<std::byte>() + first * view.row_stride * SizeOf(view.dtype), view.dtype,
          view.row_stride};
}

// Operands by op.h's names, and where the workspace keeps what.
class LmHead {
 public:
  LmHead(Op op, const LossAttrs& attrs, std::span<const TensorView> operands,
         const Context& context)
      : op_(op),
        attrs_(attrs),
        operands_(operands),
        context_(context),
        rows_(operands[0].rows()),
        width_(operands[0].RowElements()),
        vocab_(operands[1].rows()),
        scratch_(rows_, width_, vocab_, attrs, operands[0].dtype, operands[1].dtype) {
    std::byte* at = context.workspace;
    products_ = at;
    at += scratch_.products_bytes;
    logits_ = {at, scratch_.type, scratch_.logits_stride};
    at += scratch_.logits_bytes;
    hidden_copy_ = {at, scratch_.type, scratch_.hidden_stride};
    at += scratch_.hidden_bytes;
    weight_ = scratch_.weight_bytes == 0 ? RowsFrom(operands[1], 0)
                                         : Matrix{at, scratch_.type, scratch_.weight_stride};
    at += scratch_.weight_bytes;
    losses_ = reinterpret_cast<double*>(at);
  }

  Status Run() const {
    Status status;
    if (scratch_.weight_bytes > 0) {
      status = Convert(RowsFrom(operands_[1], 0), weight_, vocab_, width_, context_);
    }
    for (int64_t first = 0; status.ok() && first < rows_; first += scratch_.chunk) {
      status = RunChunk(first, std::min(scratch_.chunk, rows_ - first));
    }
    if (!status.ok()) return status;
    return Launch("lm_head_loss", StatsKernel, LaunchShape{.threads = kStatsThreads}, context_,
                  static_cast<const double*>(losses_), Targets(), rows_, operands_[3].as<float>(),
                  grad() || operands_[4].absent() ? nullptr : operands_[4].as<float>());
  }

 private:
  const int32_t* Targets() const { return operands_[2].as<const int32_t>(); }
  bool grad() const { return op_ == Op::kLmHeadLossGrad; }

  Status RunChunk(int64_t first, int64_t rows) const {
    Matrix hidden = RowsFrom(operands_[0], first);
    Status status;
    if (scratch_.hidden_bytes > 0) {
      status = Convert(hidden, hidden_copy_, rows, width_, context_);
      hidden = hidden_copy_;
    }
    if (status.ok()) status = Logits(hidden, rows);
    if (status.ok()) status = Losses(first, rows);
    if (!status.ok() || !grad()) return status;
    status = HiddenGrad(first, rows);
    const bool trained = !operands_[5].absent();
    return status.ok() && trained ? WeightGrad(hidden, first, rows) : status;
  }

  Status Logits(const Matrix& hidden, int64_t rows) const {
    return RunGemm({.m = rows,
                    .n = vocab_,
                    .k = width_,
                    .transpose_b = true,
                    .precision = attrs_.precision,
                    .a = hidden,
                    .b = weight_,
                    .c = logits_},
                   products_, context_);
  }

  // Leaves the gradient of the sum of losses where the logits were, if asked for.
  Status Losses(int64_t first, int64_t rows) const {
    const LossArguments arguments = {
        .logits = {logits_.data, logits_.row_stride, logits_.dtype == DType::kBF16,
                   logits_.dtype == DType::kF16},
        .targets = Targets() + first,
        .schedule = grad() && !operands_[6].absent() ? operands_[6].as<const float>() : nullptr,
        .weights =
            grad() && !operands_[7].absent() ? operands_[7].as<const float>() + first : nullptr,
        .losses = losses_ + first,
        .rows = rows,
        .vocab = vocab_,
        .first_row = first,
        .terms = attrs_.terms,
        .grad = grad(),
        .wide = logits_.row_stride * SizeOf(logits_.dtype) % 16 == 0,
        .op = op_,
        .faults = context_.faults};
    return Launch("lm_head_loss", RowLossKernel, RowPackShape(rows, vocab_), context_, arguments);
  }

  Status HiddenGrad(int64_t first, int64_t rows) const {
    return RunGemm({.m = rows,
                    .n = width_,
                    .k = vocab_,
                    .precision = attrs_.precision,
                    .a = logits_,
                    .b = weight_,
                    .c = RowsFrom(operands_[4], first)},
                   products_, context_);
  }

  Status WeightGrad(const Matrix& hidden, int64_t first, int64_t rows) const {
    return RunGemm({.m = vocab_,
                    .n = width_,
                    .k = rows,
                    .transpose_a = true,
                    .accumulate = first > 0 || attrs_.accumulate,
                    .precision = attrs_.precision,
                    .a = logits_,
                    .b = hidden,
                    .c = RowsFrom(operands_[5], 0)},
                   products_, context_);
  }

  const Op op_;
  const LossAttrs& attrs_;
  const std::span<const TensorView> operands_;
  const Context& context_;
  const int64_t rows_, width_, vocab_;
  const LmHeadScratch scratch_;
  std::byte* products_;
  Matrix logits_, hidden_copy_, weight_;
  double* losses_;
};

}  // namespace

Status LmHeadLoss(const OpAttrs& attrs, std::span<const TensorView> operands,
                  const Context& context) {
  return LmHead(Op::kLmHeadLoss, std::get<LossAttrs>(attrs), operands, context).Run();
}

Status LmHeadLossGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                      const Context& context) {
  return LmHead(Op::kLmHeadLossGrad, std::get<LossAttrs>(attrs), operands, context).Run();
}

}  // namespace terrace::kernels::cuda
