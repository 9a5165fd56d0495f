// RMSNorm and its gradient, over the last dimension of [n,d] or [n,heads,d]. Built like
// layer_norm.cc.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_sums.h"
#include "kernels/cpu/rms_norm.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/row_blocks.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void NormalizeVector(const RmsNormCall& call, int64_t index) {
  const int64_t columns = NormColumns(call.x);
  const T* x = NormVector<const T>(call.x, index);
  T* y = NormVector<T>(call.y, index);
  const float squares = SumVectors(columns, [x](int64_t i, auto access) HWY_ATTR {
    const V x_i = access.Load(x + i);
    return hn::Mul(x_i, x_i);
  });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(columns) + call.epsilon);
  const V rstd_v = hn::Set(D(), rstd), offset = hn::Set(D(), call.offset);
  ForVectors(columns, [&](int64_t i, auto access) HWY_ATTR {
    const V x_hat = hn::Mul(access.Load(x + i), rstd_v);
    access.Store(hn::Mul(x_hat, hn::Add(access.Load(call.weight + i), offset)), y + i);
  });
  call.rstd[index] = rstd;
}

void RmsNormVectors(const RmsNormCall& call, int64_t begin, int64_t end) {
  ByType(call.x.dtype, [&](auto* type) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      NormalizeVector<std::remove_pointer_t<decltype(type)>>(call, i);
    }
  });
}

// dx of one vector; adds its part to the block's sum of dweight.
template <typename T>
void GradientOfVector(const RmsNormGradCall& call, int64_t index, float* dweight) {
  const int64_t columns = NormColumns(call.x);
  const T* dy = NormVector<const T>(call.dy, index);
  const T* x = NormVector<const T>(call.x, index);
  const T* residual = call.residual.absent() ? nullptr : NormVector<const T>(call.residual, index);
  T* dx = NormVector<T>(call.dx, index);
  const float* weight = call.weight;
  const V rstd = hn::Set(D(), call.rstd[index]), offset = hn::Set(D(), call.offset);

  const float dot = SumVectors(columns, [=](int64_t i, auto access) HWY_ATTR {
    const V g = hn::Mul(access.Load(dy + i), hn::Add(access.Load(weight + i), offset));
    return hn::Mul(g, hn::Mul(access.Load(x + i), rstd));
  });
  const V mean_gx = hn::Set(D(), dot / static_cast<float>(columns));
  ForVectors(columns, [&](int64_t i, auto access) HWY_ATTR {
    const V dy_i = access.Load(dy + i);
    const V x_hat = hn::Mul(access.Load(x + i), rstd);
    const V g = hn::Mul(dy_i, hn::Add(access.Load(weight + i), offset));
    V dx_i = hn::Mul(rstd, hn::NegMulAdd(x_hat, mean_gx, g));
    if (residual != nullptr) dx_i = hn::Add(dx_i, access.Load(residual + i));
    access.Store(hn::MulAdd(dy_i, x_hat, access.Load(dweight + i)), dweight + i);
    access.Store(dx_i, dx + i);
  });
}

void RmsNormGradBlock(const RmsNormGradCall& call, int64_t begin, int64_t end, float* dweight) {
  std::fill_n(dweight, NormColumns(call.x), 0.0f);
  ByType(call.x.dtype, [&](auto* type) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      GradientOfVector<std::remove_pointer_t<decltype(type)>>(call, i, dweight);
    }
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(RmsNormVectors);
HWY_EXPORT(RmsNormGradBlock);

Status RmsNorm(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& norm = std::get<NormAttrs>(attrs);
  const RmsNormCall call = {.x = operands[0],
                            .weight = operands[1].as<const float>(),
                            .y = operands[2],
                            .rstd = operands[3].as<float>(),
                            .epsilon = norm.epsilon,
                            .offset = norm.unit_offset ? 1.0f : 0.0f};
  ParallelFor(NormVectors(call.x), NormColumns(call.x), context.threads,
              [&call](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(RmsNormVectors)(call, begin, end);
              });
  return {};
}

Status RmsNormGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                   const Context& context) {
  const auto& norm = std::get<NormAttrs>(attrs);
  const RmsNormGradCall call = {.dy = operands[0],
                                .x = operands[1],
                                .weight = operands[2].as<const float>(),
                                .rstd = operands[3].as<const float>(),
                                .residual = operands[4],
                                .dx = operands[5],
                                .offset = norm.unit_offset ? 1.0f : 0.0f};
  const int64_t columns = NormColumns(call.x);
  const int64_t vectors = NormVectors(call.x);
  const RowBlocks blocks = SplitRows(vectors);
  const int64_t stride = PartialStride(columns);
  float* dweight_parts = reinterpret_cast<float*>(context.workspace);
  ParallelFor(blocks.count, blocks.rows_per_block * columns, context.threads,
              [&](int64_t begin, int64_t end) {
                for (int64_t b = begin; b < end; ++b) {
                  const int64_t first = b * blocks.rows_per_block;
                  const int64_t last = std::min(first + blocks.rows_per_block, vectors);
                  HWY_DYNAMIC_DISPATCH(RmsNormGradBlock)
                  (call, first, last, dweight_parts + b * stride);
                }
              });
  AddPartialSums({dweight_parts, blocks.count, stride, columns}, norm.accumulate, context.threads,
                 operands[6].as<float>());
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
