// Sums: over rows (bias gradients, and the second half of the norms' gradients), over a whole
// tensor, over statistics. All in an order that the shape fixes.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_sums.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/row_blocks.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

void AddPartialColumns(const PartialSums& partials, bool accumulate, int64_t begin, int64_t end,
                       float* out) {
  ForVectors(end - begin, [&](int64_t i, auto access) HWY_ATTR {
    const float* column = partials.data + begin + i;
    V sum = access.Load(column);
    for (int64_t b = 1; b < partials.blocks; ++b) {
      sum = hn::Add(sum, access.Load(column + b * partials.block_stride));
    }
    if (accumulate) sum = hn::Add(sum, access.Load(out + begin + i));
    access.Store(sum, out + begin + i);
  });
}

// The sum of rows [begin, end) of dy. Four rows at a time: a quarter of the traffic to `sums`.
template <typename T>
void SumBlockOfRows(const TensorView& dy, int64_t begin, int64_t end, float* sums) {
  const int64_t columns = dy.size[1];
  const auto at = [&dy](int64_t row) { return reinterpret_cast<const T*>(Address(dy, row, 0)); };
  std::fill_n(sums, columns, 0.0f);
  int64_t row = begin;
  for (; row + 4 <= end; row += 4) {
    const T* a = at(row);
    const T* b = at(row + 1);
    const T* c = at(row + 2);
    const T* d = at(row + 3);
    ForVectors(columns, [&](int64_t i, auto access) HWY_ATTR {
      const V ab = hn::Add(access.Load(a + i), access.Load(b + i));
      const V cd = hn::Add(access.Load(c + i), access.Load(d + i));
      access.Store(hn::Add(access.Load(sums + i), hn::Add(ab, cd)), sums + i);
    });
  }
  for (; row < end; ++row) {
    const T* a = at(row);
    ForVectors(columns, [&](int64_t i, auto access) HWY_ATTR {
      access.Store(hn::Add(access.Load(sums + i), access.Load(a + i)), sums + i);
    });
  }
}

void SumRows(const TensorView& dy, int64_t begin, int64_t end, float* sums) {
  ByType(dy.dtype, [&](auto* type) HWY_ATTR {
    SumBlockOfRows<std::remove_pointer_t<decltype(type)>>(dy, begin, end, sums);
  });
}

// In pieces, so that no chain of f32 additions is long.
double SumOfSquares(const TensorView& x, int64_t begin, int64_t end) {
  constexpr int64_t kPiece = 4096;
  double total = 0;
  ByType(x.dtype, [&](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    for (int64_t first = begin; first < end; first += kPiece) {
      const T* p = x.as<const T>() + first;
      total += SumVectors(std::min(kPiece, end - first), [p](int64_t i, auto access) HWY_ATTR {
        const V v = access.Load(p + i);
        return hn::Mul(v, v);
      });
    }
  });
  return total;
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(AddPartialColumns);
HWY_EXPORT(SumRows);
HWY_EXPORT(SumOfSquares);

void AddPartialSums(const PartialSums& partials, bool accumulate, int threads, float* out) {
  constexpr int64_t kColumns = 64;  // a piece: whole cache lines, so that threads do not share one
  ParallelFor((partials.columns + kColumns - 1) / kColumns, kColumns * partials.blocks, threads,
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(AddPartialColumns)
                (partials, accumulate, begin * kColumns, std::min(end * kColumns, partials.columns),
                 out);
              });
}

Status BiasGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                const Context& context) {
  const TensorView& dy = operands[0];
  const int64_t columns = dy.size[1];
  const RowBlocks blocks = SplitRows(dy.rows());
  const int64_t stride = PartialStride(columns);
  float* parts = reinterpret_cast<float*>(context.workspace);
  ParallelFor(blocks.count, blocks.rows_per_block * columns, context.threads,
              [&](int64_t begin, int64_t end) {
                for (int64_t b = begin; b < end; ++b) {
                  const int64_t first = b * blocks.rows_per_block;
                  const int64_t last = std::min(first + blocks.rows_per_block, dy.rows());
                  HWY_DYNAMIC_DISPATCH(SumRows)(dy, first, last, parts + b * stride);
                }
              });
  AddPartialSums({parts, blocks.count, stride, columns},
                 std::get<AccumulateAttrs>(attrs).accumulate, context.threads,
                 operands[1].as<float>());
  return {};
}

Status SquaredNorm(const OpAttrs& attrs, std::span<const TensorView> operands,
                   const Context& context) {
  const TensorView& x = operands[0];
  const int64_t elements = x.Elements();
  const int64_t blocks = SumBlocks(elements);
  double* parts = reinterpret_cast<double*>(context.workspace);
  ParallelFor(blocks, kSumBlockElements, context.threads, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kSumBlockElements;
      const int64_t last = std::min(first + kSumBlockElements, elements);
      parts[b] = HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, first, last);
    }
  });
  double total = 0;
  for (int64_t b = 0; b < blocks; ++b) total += parts[b];
  *operands[1].as<float>() = static_cast<float>(total * std::get<ScaleAttrs>(attrs).scale);
  return {};
}

Status Sum(const OpAttrs&, std::span<const TensorView> operands, const Context&) {
  const float* x = operands[0].as<const float>();
  double total = 0;
  for (int64_t i = 0; i < operands[0].rows(); ++i) total += x[i];
  *operands[1].as<float>() = static_cast<float>(total);
  return {};
}

Status SumStats(const OpAttrs&, std::span<const TensorView> operands, const Context&) {
  const float* stats = operands[0].as<const float>();
  double loss = 0;
  double tokens = 0;
  for (int64_t row = 0; row < operands[0].rows(); ++row) {
    loss += stats[2 * row];
    tokens += stats[2 * row + 1];
  }
  float* total = operands[1].as<float>();
  total[0] = static_cast<float>(loss);
  total[1] = static_cast<float>(tokens);
  return {};
}

Status GradScale(const OpAttrs& attrs, std::span<const TensorView> operands, const Context&) {
  const float* squares = operands[0].as<const float>();
  const double loss = operands[1].as<const float>()[0];
  const double tokens = operands[1].as<const float>()[1];
  const double clip = std::get<ClipAttrs>(attrs).clip_grad_norm;
  const double factor = operands[3].absent() ? 1.0 : operands[3].as<const float>()[3];
  double sum = 0;
  for (int64_t i = 0; i < operands[0].rows(); ++i) sum += squares[i];
  const double norm = std::sqrt(sum) / (factor * tokens);
  const bool skip = !std::isfinite(norm) || tokens <= 0;
  const double shrink = clip > 0 && norm > clip ? clip / norm : 1.0;
  float* out = operands[2].as<float>();
  out[0] = skip ? 0.0f : static_cast<float>(shrink / (factor * tokens));
  out[1] = static_cast<float>(norm);
  out[2] = static_cast<float>(loss / tokens);
  out[3] = skip ? 1.0f : 0.0f;
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
