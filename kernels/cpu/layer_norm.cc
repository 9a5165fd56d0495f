// LayerNorm and its gradient. A row is read from memory once and stays in the first-level cache for
// the passes over it; the gradient takes dx and the partial sums of dweight and dbias from the same
// sweep.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/layer_norm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_sums.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/row_blocks.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void NormalizeRow(const LayerNormCall& call, int64_t row) {
  const D d;
  const int64_t columns = call.x.size[1];
  const T* x = reinterpret_cast<const T*>(Address(call.x, row, 0));
  T* y = reinterpret_cast<T*>(Address(call.y, row, 0));

  const float mean =
      SumVectors(columns, [x](int64_t i, auto access) HWY_ATTR { return access.Load(x + i); }) /
      static_cast<float>(columns);
  const V mean_v = hn::Set(d, mean);
  const float squares = SumVectors(columns, [x, mean_v](int64_t i, auto access) HWY_ATTR {
    const V centred = hn::Sub(access.Load(x + i), mean_v);
    return hn::Mul(centred, centred);
  });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(columns) + call.epsilon);
  const V rstd_v = hn::Set(d, rstd);
  ForVectors(columns, [&](int64_t i, auto access) HWY_ATTR {
    const V scaled =
        hn::Mul(hn::Mul(hn::Sub(access.Load(x + i), mean_v), rstd_v), access.Load(call.weight + i));
    const V shifted = call.bias == nullptr ? scaled : hn::Add(scaled, access.Load(call.bias + i));
    access.Store(shifted, y + i);
  });
  call.mean[row] = mean;
  call.rstd[row] = rstd;
}

void LayerNormRows(const LayerNormCall& call, int64_t begin, int64_t end) {
  ByType(call.x.dtype, [&](auto* type) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) {
      NormalizeRow<std::remove_pointer_t<decltype(type)>>(call, row);
    }
  });
}

// dx of one row; adds the row's part to the block's sums of dweight and, where asked for, dbias.
template <typename T>
void GradientOfRow(const LayerNormGradCall& call, int64_t row, float* dweight, float* dbias) {
  const D d;
  const int64_t columns = call.x.size[1];
  const T* dy = reinterpret_cast<const T*>(Address(call.dy, row, 0));
  const T* x = reinterpret_cast<const T*>(Address(call.x, row, 0));
  const T* residual =
      call.residual.absent() ? nullptr : reinterpret_cast<T*>(Address(call.residual, row, 0));
  T* dx = reinterpret_cast<T*>(Address(call.dx, row, 0));
  const V mean = hn::Set(d, call.mean[row]);
  const V rstd = hn::Set(d, call.rstd[row]);
  const float* weight = call.weight;

  const auto normalized = [=](int64_t i, auto access)
                              HWY_ATTR { return hn::Mul(hn::Sub(access.Load(x + i), mean), rstd); };
  const TwoSums sums = SumVectorPairs(columns, [=](int64_t i, auto access) HWY_ATTR {
    const V g = hn::Mul(access.Load(dy + i), access.Load(weight + i));
    return TwoVectors{g, hn::Mul(g, normalized(i, access))};
  });
  const V mean_g = hn::Set(d, sums.first / static_cast<float>(columns));
  const V mean_gx = hn::Set(d, sums.second / static_cast<float>(columns));
  ForVectors(columns, [&](int64_t i, auto access) HWY_ATTR {
    const V dy_i = access.Load(dy + i);
    const V x_hat = normalized(i, access);
    const V g = hn::Mul(dy_i, access.Load(weight + i));
    V dx_i = hn::Mul(rstd, hn::NegMulAdd(x_hat, mean_gx, hn::Sub(g, mean_g)));
    if (residual != nullptr) dx_i = hn::Add(dx_i, access.Load(residual + i));
    access.Store(hn::MulAdd(dy_i, x_hat, access.Load(dweight + i)), dweight + i);
    if (dbias != nullptr) access.Store(hn::Add(dy_i, access.Load(dbias + i)), dbias + i);
    access.Store(dx_i, dx + i);
  });
}

void LayerNormGradBlock(const LayerNormGradCall& call, int64_t begin, int64_t end, float* dweight,
                        float* dbias) {
  const int64_t columns = call.x.size[1];
  std::fill_n(dweight, columns, 0.0f);
  if (dbias != nullptr) std::fill_n(dbias, columns, 0.0f);
  ByType(call.x.dtype, [&](auto* type) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) {
      GradientOfRow<std::remove_pointer_t<decltype(type)>>(call, row, dweight, dbias);
    }
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(LayerNormRows);
HWY_EXPORT(LayerNormGradBlock);

Status LayerNorm(const OpAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context) {
  const LayerNormCall call = {.x = operands[0],
                              .weight = operands[1].as<const float>(),
                              .bias = operands[2].as<const float>(),
                              .y = operands[3],
                              .mean = operands[4].as<float>(),
                              .rstd = operands[5].as<float>(),
                              .epsilon = std::get<NormAttrs>(attrs).epsilon};
  ParallelFor(call.x.rows(), call.x.RowElements(), context.threads,
              [&call](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(LayerNormRows)(call, begin, end);
              });
  return {};
}

Status LayerNormGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                     const Context& context) {
  const LayerNormGradCall call = {.dy = operands[0],
                                  .x = operands[1],
                                  .weight = operands[2].as<const float>(),
                                  .mean = operands[3].as<const float>(),
                                  .rstd = operands[4].as<const float>(),
                                  .residual = operands[5],
                                  .dx = operands[6]};
  const TensorView& dbias = operands[8];
  const int64_t columns = call.x.size[1];
  const RowBlocks blocks = SplitRows(call.x.rows());
  const int64_t stride = PartialStride(columns);
  float* dweight_parts = reinterpret_cast<float*>(context.workspace);
  float* dbias_parts = dbias.absent() ? nullptr : dweight_parts + blocks.count * stride;
  ParallelFor(blocks.count, blocks.rows_per_block * columns, context.threads,
              [&](int64_t begin, int64_t end) {
                for (int64_t b = begin; b < end; ++b) {
                  const int64_t first = b * blocks.rows_per_block;
                  const int64_t last = std::min(first + blocks.rows_per_block, call.x.rows());
                  HWY_DYNAMIC_DISPATCH(LayerNormGradBlock)
                  (call, first, last, dweight_parts + b * stride,
                   dbias_parts == nullptr ? nullptr : dbias_parts + b * stride);
                }
              });
  const bool accumulate = std::get<NormAttrs>(attrs).accumulate;
  PartialSums sums = {dweight_parts, blocks.count, stride, columns};
  AddPartialSums(sums, accumulate, context.threads, operands[7].as<float>());
  if (dbias.absent()) return {};
  sums.data = dbias_parts;
  AddPartialSums(sums, accumulate, context.threads, dbias.as<float>());
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
