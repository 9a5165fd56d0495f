// The fused LM head and cross-entropy: logits of a chunk of rows, their softmax in place, and the
// three products that need them, so that a chunk is the only logits there ever are.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lm_head_loss.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "hwy/highway.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/softcap-inl.h"
#include "kernels/cpu/softmax-inl.h"
#include "kernels/lm_head_scratch.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// The loss of one row. With `exps` (which may be the row itself), also turns the row into its
// gradient, times `factor`. The exponentials of capped logits are made once more for that, as the
// row is needed for the slopes.
template <typename T, typename Cap>
double LossOfRow(T* row, int64_t vocab, int32_t target, const LossTerms& terms, float factor,
                 float* exps, const Cap& cap) {
  const D d;
  const float top = hn::GetLane(cap(hn::Set(d, LargestOf(row, vocab))));
  const V target_lanes = cap(Tail{1}.Load(row + target));
  const double target_logit = hn::GetLane(target_lanes);
  const float each = terms.label_smoothing / static_cast<float>(vocab);
  const float own = 1.0f - terms.label_smoothing;
  const double score =
      each == 0 ? target_logit : own * target_logit + each * SumOfLogits(row, vocab, cap);
  const V tops = hn::Set(d, top);
  const float sum = SumVectors(vocab, [&](int64_t i, auto access) HWY_ATTR {
    const V e = ExpBelow(cap(access.Load(row + i)), tops);
    if (!Cap::kCaps && exps != nullptr) access.Store(e, exps + i);
    return e;
  });
  const double log_z = std::log(static_cast<double>(sum)) + top;
  if (exps != nullptr) {
    const float scale = factor / sum * static_cast<float>(1 + 2 * terms.z_loss * log_z);
    const V scales = hn::Set(d, scale), shift = hn::Set(d, -each * factor);
    V of_target;
    if constexpr (Cap::kCaps) {
      const V p = hn::Mul(ExpBelow(target_lanes, tops), scales);
      of_target = hn::Mul(hn::Sub(p, hn::Set(d, (own + each) * factor)), cap.Slope(target_lanes));
      ForVectors(vocab, [&](int64_t i, auto access) HWY_ATTR {
        const V z = cap(access.Load(row + i));
        const V g = hn::MulAdd(ExpBelow(z, tops), scales, shift);
        access.Store(hn::Mul(g, cap.Slope(z)), row + i);
      });
    } else {
      // Before its place is written, which may be the row's.
      of_target = hn::Set(d, exps[target] * scale - (own + each) * factor);
      ForVectors(vocab, [&](int64_t i, auto access) HWY_ATTR {
        access.Store(hn::MulAdd(access.Load(exps + i), scales, shift), row + i);
      });
    }
    Tail{1}.Store(of_target, row + target);
  }
  return log_z - score + terms.z_loss * log_z * log_z;
}

double LossOfTypedRow(void* row, DType dtype, int64_t vocab, int32_t target, const LossTerms& terms,
                      bool grad, float factor, float* exps) {
  const auto loss_of = [&](auto* typed, float* to) HWY_ATTR {
    float* exps = grad ? to : nullptr;
    if (terms.softcap > 0)
      return LossOfRow(typed, vocab, target, terms, factor, exps, Capped(terms.softcap));
    return LossOfRow(typed, vocab, target, terms, factor, exps, Uncapped());
  };
  if (dtype == DType::kBF16) return loss_of(static_cast<BF16*>(row), exps);
  if (dtype == DType::kF16) return loss_of(static_cast<F16*>(row), exps);
  return loss_of(static_cast<float*>(row), static_cast<float*>(row));
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {
namespace {

HWY_EXPORT(LossOfTypedRow);

// Operands by op.h's names, and where the workspace keeps what.
class LmHead {
 public:
  LmHead(const LossAttrs& attrs, std::span<const TensorView> operands, const Context& context)
      : attrs_(attrs),
        operands_(operands),
        rows_(operands[0].rows()),
        width_(operands[0].RowElements()),
        vocab_(operands[1].rows()),
        chunk_(std::min(rows_, attrs.chunk_rows)),
        threads_(context.threads),
        scratch_(chunk_, vocab_, attrs.precision, context.threads),
        logits_{context.workspace, scratch_.logits_type, vocab_},
        losses_(reinterpret_cast<double*>(context.workspace + scratch_.logits_bytes)),
        exps_(context.workspace + scratch_.logits_bytes + scratch_.losses_bytes),
        products_{context.threads, context.workspace + scratch_.bytes,
                  context.workspace_bytes - scratch_.bytes} {}

  Status Run(bool grad) const {
    double loss = 0;
    int64_t counted = 0;
    for (int64_t first = 0; first < rows_; first += chunk_) {
      const int64_t rows = std::min(chunk_, rows_ - first);
      if (Status status = Logits(first, rows); !status.ok()) return status;
      Losses(first, rows, grad);
      float* const of_rows = grad || operands_[4].absent() ? nullptr : operands_[4].as<float>();
      for (int64_t i = 0; i < rows; ++i) {
        loss += losses_[i];
        if (of_rows != nullptr) of_rows[first + i] = static_cast<float>(losses_[i]);
        counted += Target(first + i) >= 0;
      }
      if (!grad) continue;
      if (Status status = HiddenGrad(first, rows); !status.ok()) return status;
      if (operands_[5].absent()) continue;  // the weight is not trained
      if (Status status = WeightGrad(first, rows); !status.ok()) return status;
    }
    float* stats = operands_[3].as<float>();
    stats[0] = static_cast<float>(loss);
    stats[1] = static_cast<float>(counted);
    return {};
  }

 private:
  int32_t Target(int64_t row) const { return operands_[2].as<const int32_t>()[row]; }

  Matrix RowsFrom(int operand, int64_t first) const {
    const TensorView& view = operands_[operand];
    return {view.as<std::byte>() + first * view.row_stride * SizeOf(view.dtype), view.dtype,
            view.row_stride};
  }

  Status Logits(int64_t first, int64_t rows) const {
    return RunGemm({.m = rows,
                    .n = vocab_,
                    .k = width_,
                    .transpose_b = true,
                    .precision = attrs_.precision,
                    .a = RowsFrom(0, first),
                    .b = RowsFrom(1, 0),
                    .c = logits_},
                   products_);
  }

  // What the gradient of a row is multiplied by.
  float Factor(bool grad, int64_t row) const {
    if (!grad) return 1.0f;
    const float factor = operands_[6].absent() ? 1.0f : operands_[6].as<const float>()[3];
    return operands_[7].absent() ? factor : factor * operands_[7].as<const float>()[row];
  }

  // Leaves the gradient of the sum of losses where the logits were, if asked for.
  void Losses(int64_t first, int64_t rows, bool grad) const {
    const auto loss_of_row = HWY_DYNAMIC_DISPATCH(LossOfTypedRow);
    const int64_t row_bytes = vocab_ * SizeOf(scratch_.logits_type);
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      std::byte* row = static_cast<std::byte*>(logits_.data) + i * row_bytes;
      const int32_t target = Target(first + i);
      if (target < 0) {
        losses_[i] = 0;
        std::fill(row, row + row_bytes, std::byte{0});
        continue;
      }
      float* exps = reinterpret_cast<float*>(exps_ + omp_get_thread_num() * scratch_.row_bytes);
      losses_[i] = loss_of_row(row, scratch_.logits_type, vocab_, target, attrs_.terms, grad,
                               Factor(grad, first + i), exps);
    }
  }

  Status HiddenGrad(int64_t first, int64_t rows) const {
    return RunGemm({.m = rows,
                    .n = width_,
                    .k = vocab_,
                    .precision = attrs_.precision,
                    .a = logits_,
                    .b = RowsFrom(1, 0),
                    .c = RowsFrom(4, first)},
                   products_);
  }

  Status WeightGrad(int64_t first, int64_t rows) const {
    return RunGemm({.m = vocab_,
                    .n = width_,
                    .k = rows,
                    .transpose_a = true,
                    .accumulate = first > 0 || attrs_.accumulate,
                    .precision = attrs_.precision,
                    .a = logits_,
                    .b = RowsFrom(0, first),
                    .c = RowsFrom(5, 0)},
                   products_);
  }

  const LossAttrs& attrs_;
  const std::span<const TensorView> operands_;
  const int64_t rows_, width_, vocab_, chunk_;
  const int threads_;
  const LmHeadScratch scratch_;
  const Matrix logits_;
  double* const losses_;
  std::byte* const exps_;
  const Context products_;
};

}  // namespace

Status LmHeadLoss(const OpAttrs& attrs, std::span<const TensorView> operands,
                  const Context& context) {
  return LmHead(std::get<LossAttrs>(attrs), operands, context).Run(/*grad=*/false);
}

Status LmHeadLossGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                      const Context& context) {
  return LmHead(std::get<LossAttrs>(attrs), operands, context).Run(/*grad=*/true);
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
