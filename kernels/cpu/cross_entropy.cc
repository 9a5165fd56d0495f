// Cross-entropy over logits whose columns are split over ranks: what one rank says of its columns,
// the loss from what all ranks say, and the gradient in place.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/softcap-inl.h"
#include "kernels/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

template <typename Cap>
void SumOfRowBy(const float* row, int64_t count, float* out, const Cap& cap) {
  const float top = hn::GetLane(cap(hn::Set(D(), LargestOf(row, count))));
  const V tops = hn::Set(D(), top);
  out[0] = top;
  out[1] = SumVectors(count, [&](int64_t i, auto access)
                                 HWY_ATTR { return ExpBelow(cap(access.Load(row + i)), tops); });
}

// {max, sum of exp(z - max)} of `count` > 0 logits, which are capped first unless softcap is 0.
void SumOfRow(const float* row, int64_t count, float softcap, float* out) {
  softcap > 0 ? SumOfRowBy(row, count, out, Capped(softcap))
              : SumOfRowBy(row, count, out, Uncapped());
}

// Logits to exp(z - top) * scale + shift; capped ones to that times their slope.
void SoftmaxOfRow(float* row, int64_t count, float softcap, float top, float scale, float shift) {
  const V tops = hn::Set(D(), top), scales = hn::Set(D(), scale), shifts = hn::Set(D(), shift);
  if (softcap > 0) {
    const Capped cap(softcap);
    return ForVectors(count, [&](int64_t i, auto access) HWY_ATTR {
      const V z = cap(access.Load(row + i));
      const V g = hn::MulAdd(ExpBelow(z, tops), scales, shifts);
      access.Store(hn::Mul(g, cap.Slope(z)), row + i);
    });
  }
  ForVectors(count, [=](int64_t i, auto access) HWY_ATTR {
    access.Store(hn::MulAdd(ExpBelow(access.Load(row + i), tops), scales, shifts), row + i);
  });
}

float SumOfShard(const float* row, int64_t count, float softcap) {
  return softcap > 0 ? SumOfLogits(row, count, Capped(softcap))
                     : SumOfLogits(row, count, Uncapped());
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {
namespace {

HWY_EXPORT(SumOfRow);
HWY_EXPORT(SoftmaxOfRow);
HWY_EXPORT(SumOfShard);

// The columns of the vocabulary that a shard holds: `count` from `first` on; the rest are padding.
struct Shard {
  explicit Shard(const CrossEntropyAttrs& attrs)
      : first(attrs.shard * attrs.shard_rows),
        count(std::clamp<int64_t>(attrs.vocabulary - first, 0, attrs.shard_rows)) {}
  // Of target `target`, or -1 where another shard holds it.
  int64_t Column(int32_t target) const {
    return target >= first && target < first + count ? target - first : -1;
  }
  int64_t first, count;
};

// One row's statistics of all shards; shard s's are `stride` floats behind those of s - 1.
struct WholeRow {
  WholeRow(const TensorView& rows, int64_t row) {
    const int64_t shards = rows.size[0], stride = rows.row_stride;
    const float* at = rows.as<const float>() + 3 * row;
    for (int64_t s = 0; s < shards; ++s) top = std::max(top, at[s * stride]);
    for (int64_t s = 0; s < shards; ++s) {
      const float* part = at + s * stride;
      if (part[1] != 0) sum += part[1] * std::exp(static_cast<double>(part[0]) - top);
      score += part[2];
    }
  }
  double LogZ() const { return std::log(sum) + top; }
  double Loss(const LossTerms& terms) const {
    const double log_z = LogZ();
    return log_z - score + terms.z_loss * log_z * log_z;
  }

  float top = std::numeric_limits<float>::lowest();
  double sum = 0;
  double score = 0;
};

// What each logit and, beside that, the target's adds to the score of its row.
struct ScoreWeights {
  explicit ScoreWeights(const CrossEntropyAttrs& attrs)
      : each(attrs.terms.label_smoothing / static_cast<float>(attrs.vocabulary)),
        target(1.0f - attrs.terms.label_smoothing) {}
  float each, target;
};

// One logit as the loss takes it, and its slope.
struct CappedLogit {
  CappedLogit(float x, float softcap)
      : value(softcap > 0 ? softcap * std::tanh(x / softcap) : x),
        slope(softcap > 0 ? 1.0f - (value / softcap) * (value / softcap) : 1.0f) {}
  float value, slope;
};

Status CheckTargets(const char* op, const TensorView& targets, int64_t vocabulary) {
  const auto* values = targets.as<const int32_t>();
  for (int64_t i = 0; i < targets.rows(); ++i) {
    if (values[i] < vocabulary) continue;
    return {std::string(op) + ": target " + std::to_string(values[i]) + " at position " +
            std::to_string(i) + " is outside the vocabulary of " + std::to_string(vocabulary)};
  }
  return {};
}

}  // namespace

Status CrossEntropyRows(const OpAttrs& attrs, std::span<const TensorView> operands,
                        const Context& context) {
  const auto& attributes = std::get<CrossEntropyAttrs>(attrs);
  const TensorView& logits = operands[0];
  const TensorView& targets = operands[1];
  Status status = CheckTargets("cross_entropy_rows", targets, attributes.vocabulary);
  if (!status.ok()) return status;
  const Shard shard(attributes);
  const ScoreWeights weights(attributes);
  const float softcap = attributes.terms.softcap;
  const auto sum_of_row = HWY_DYNAMIC_DISPATCH(SumOfRow);
  const auto sum_of_shard = HWY_DYNAMIC_DISPATCH(SumOfShard);
  ParallelFor(logits.rows(), logits.size[1], context.threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* z = logits.as<const float>() + row * logits.row_stride;
      float* out = operands[2].as<float>() + 3 * row;
      const int32_t target = targets.as<const int32_t>()[row];
      const int64_t column = shard.Column(target);
      out[0] = std::numeric_limits<float>::lowest();
      out[1] = 0;
      out[2] = column < 0 ? 0.0f : weights.target * CappedLogit(z[column], softcap).value;
      if (weights.each > 0 && target >= 0)
        out[2] += weights.each * sum_of_shard(z, shard.count, softcap);
      if (shard.count > 0) sum_of_row(z, shard.count, softcap, out);
    }
  });
  return {};
}

Status CrossEntropyLoss(const OpAttrs& attrs, std::span<const TensorView> operands,
                        const Context&) {
  const auto& attributes = std::get<CrossEntropyAttrs>(attrs);
  const TensorView& targets = operands[0];
  double loss = 0;
  int64_t counted = 0;
  float* const losses = operands[3].absent() ? nullptr : operands[3].as<float>();
  for (int64_t row = 0; row < targets.rows(); ++row) {
    const bool counts = targets.as<const int32_t>()[row] >= 0;
    const double of_row = counts ? WholeRow(operands[1], row).Loss(attributes.terms) : 0;
    if (losses != nullptr) losses[row] = static_cast<float>(of_row);
    loss += of_row;
    counted += counts;
  }
  float* stats = operands[2].as<float>();
  stats[0] = static_cast<float>(loss + (attributes.accumulate ? stats[0] : 0.0f));
  stats[1] = static_cast<float>(counted) + (attributes.accumulate ? stats[1] : 0.0f);
  return {};
}

Status CrossEntropyGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                        const Context& context) {
  const auto& attributes = std::get<CrossEntropyAttrs>(attrs);
  const TensorView& logits = operands[2];
  const Shard shard(attributes);
  const ScoreWeights weights(attributes);
  const float softcap = attributes.terms.softcap;
  const float scheduled = operands[3].absent() ? 1.0f : operands[3].as<const float>()[3];
  const float* const of_rows = operands[4].absent() ? nullptr : operands[4].as<const float>();
  const auto softmax_of_row = HWY_DYNAMIC_DISPATCH(SoftmaxOfRow);
  ParallelFor(logits.rows(), logits.size[1], context.threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* z = logits.as<float>() + row * logits.row_stride;
      const int32_t target = operands[0].as<const int32_t>()[row];
      const int64_t kept = target < 0 ? 0 : shard.count;
      std::fill(z + kept, z + attributes.shard_rows, 0.0f);
      if (kept == 0) continue;
      const WholeRow whole(operands[1], row);
      const float factor = of_rows == nullptr ? scheduled : scheduled * of_rows[row];
      const double of_z = 1.0 + 2.0 * attributes.terms.z_loss * whole.LogZ();
      const int64_t column = shard.Column(target);
      const float slope = column < 0 ? 0.0f : CappedLogit(z[column], softcap).slope;
      softmax_of_row(z, kept, softcap, whole.top, static_cast<float>(factor / whole.sum * of_z),
                     -weights.each * factor);
      if (column >= 0) z[column] -= weights.target * factor * slope;
    }
  });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
