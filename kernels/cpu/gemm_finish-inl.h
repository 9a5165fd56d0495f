// Finishes a block of a product: adds it to the sums of earlier chunks, or takes it through bias, residual and activation
// into C.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma once. Thread-safe: no
// state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_GEMM_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_GEMM_FINISH_INL_H_
#undef TERRACE_KERNELS_CPU_GEMM_FINISH_INL_H_
#else
#define TERRACE_KERNELS_CPU_GEMM_FINISH_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {

// sigmoid(2u) of gelu(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), and its complement exp(-2u) sigmoid(2u).
// One Newton step on the approximate reciprocal instead of a division: relative error below 1e-6.
struct GeluGate {
  V open;
  V closed;
};
inline constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = kGeluLinear * 0.044715f;

HWY_INLINE GeluGate GateOf(V x, V x2) {
  const D d;
  const V u2 = hn::Mul(x, hn::MulAdd(x2, hn::Set(d, kGeluCubic), hn::Set(d, kGeluLinear)));
  const V z = hn::Min(hn::Max(hn::Neg(u2), hn::Set(d, -87.0f)), hn::Set(d, 87.0f));
  const V e = hn::Exp(d, z);
  const V denominator = hn::Add(e, hn::Set(d, 1.0f));
  const V r = hn::ApproximateReciprocal(denominator);
  const V open = hn::Mul(r, hn::NegMulAdd(denominator, r, hn::Set(d, 2.0f)));
  return {open, hn::Mul(open, e)};
}

HWY_INLINE V GeluOf(V x) { return hn::Mul(x, GateOf(x, hn::Mul(x, x)).open); }

HWY_INLINE V GeluSlope(V x) {
  const D d;
  const V x2 = hn::Mul(x, x);
  const GeluGate gate = GateOf(x, x2);
  const V slope = hn::MulAdd(x2, hn::Set(d, 3 * kGeluCubic), hn::Set(d, kGeluLinear));
  return hn::MulAdd(hn::Mul(x, slope), hn::Mul(gate.open, gate.closed), gate.open);
}

template <typename Access>
HWY_INLINE V LoadElements(const Matrix& matrix, int64_t index, Access access) {
  return matrix.dtype == DType::kF32 ? access.Load(static_cast<const float*>(matrix.data) + index)
                                     : access.Load(static_cast<const BF16*>(matrix.data) + index);
}

template <typename Access>
HWY_INLINE void StoreElements(V v, const Matrix& matrix, int64_t index, Access access) {
  if (matrix.dtype == DType::kF32) {
    access.Store(v, static_cast<float*>(matrix.data) + index);
  } else {
    access.Store(v, static_cast<BF16*>(matrix.data) + index);
  }
}

// One vector of the finished product, at (row, column) of C.
template <typename Access>
HWY_INLINE void StoreFinished(const Gemm& gemm, int64_t row, int64_t column, V v, Access access) {
  const int64_t at = row * gemm.c.row_stride + column;
  if (gemm.accumulate) v = hn::Add(v, LoadElements(gemm.c, at, access));
  if (gemm.bias != nullptr) v = hn::Add(v, access.Load(gemm.bias + column));
  if (gemm.residual.data != nullptr) {
    v = hn::Add(v, LoadElements(gemm.residual, row * gemm.residual.row_stride + column, access));
  }
  if (gemm.epilogue != Epilogue::kNone) {
    const int64_t aux_at = row * gemm.aux.row_stride + column;
    if (gemm.epilogue == Epilogue::kGelu) {
      if (gemm.aux.data != nullptr) StoreElements(v, gemm.aux, aux_at, access);
      v = GeluOf(v);
    } else {
      v = hn::Mul(v, GeluSlope(LoadElements(gemm.aux, aux_at, access)));
    }
  }
  StoreElements(v, gemm.c, at, access);
}

template <typename Access>
HWY_INLINE void FinishVector(const BlockJob& job, int64_t row, int64_t column, Access access) {
  const int64_t at = row * kGemmPanel + column;
  V v = LoadVector(job.product + at);
  if (job.sums != nullptr) v = hn::Add(v, LoadVector(job.sums + at));
  if (job.last) {
    StoreFinished(*job.gemm, job.row + row, job.column + column, v, access);
  } else {
    StoreVector(v, job.sums + at);
  }
}

// Rows [begin, end) of the block.
HWY_INLINE void FinishRows(const BlockJob& job, int64_t begin, int64_t end) {
  const int64_t columns = job.columns();
  for (int64_t row = begin; row < end; ++row) {
    ForVectors(columns, [&](int64_t column, auto access)
                            HWY_ATTR { FinishVector(job, row, column, access); });
  }
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
