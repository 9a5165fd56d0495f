// Finishes a block of a product: adds it to the sums of earlier chunks, or takes it through bias,
// residual and activation into C.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_GEMM_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_GEMM_FINISH_INL_H_
#undef TERRACE_KERNELS_CPU_GEMM_FINISH_INL_H_
#else
#define TERRACE_KERNELS_CPU_GEMM_FINISH_INL_H_
#endif

#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/gelu-inl.h"
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {

// How results are rounded to bf16: by the CPU's own instruction, which AMX implies, or by
// arithmetic.
struct BF16ByArithmetic {
  template <typename Access>
  static constexpr bool kFlushesSubnormals = false;
  template <typename T, typename Access>
  static HWY_INLINE void Store(V v, T* to, Access access) {
    access.Store(v, to);
  }
};
#if HWY_TARGET <= HWY_AVX3
struct BF16ByInstruction : BF16ByArithmetic {
  template <typename Access>
  static constexpr bool kFlushesSubnormals = std::is_same_v<Access, WholeVector>;
  using BF16ByArithmetic::Store;
  static HWY_INLINE void Store(V v, BF16* to, WholeVector) {
    __m256i rounded;
    // Not an intrinsic: this code is compiled for any CPU with AVX-512.
    asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(v.raw));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
  }
};
#endif

// Product and earlier chunks, scaled. Times one is exact.
template <typename Access>
HWY_INLINE V SumAt(const BlockJob& job, int64_t at, Access access) {
  const V v = access.Load(job.product + at);
  const V sum = job.sums == nullptr ? v : hn::Add(v, access.Load(job.sums + at));
  return hn::Mul(sum, hn::Set(D(), job.gemm->scale));
}

// Rows of 64 or 128 bytes at large distances are what hardware does not foresee: they are fetched a
// block ahead. Harmless past the end of a matrix.
template <int kForWriting, typename T>
HWY_INLINE void FetchRow(const T* row) {
  __builtin_prefetch(row, kForWriting);
  if constexpr (sizeof(T) == 4) __builtin_prefetch(row + kGemmPanel / 2, kForWriting);
}

// The rows of a block that go to C as they are, or are added to it. Nearly all products: no
// question is asked in the loop.
template <typename Rounding, typename T, bool kAddSums, bool kAddOld>
HWY_INLINE void StoreRows(const BlockJob& job, int64_t begin, int64_t end) {
  const int64_t columns = job.columns();
  const int64_t stride = job.gemm->c.row_stride;
  T* c = static_cast<T*>(job.gemm->c.data) + (job.row + begin) * stride + job.column;
  const int64_t next = job.next_rows * stride + job.next_columns;
  const float* product = job.product + begin * kGemmPanel;
  const float* sums = kAddSums ? job.sums + begin * kGemmPanel : nullptr;
  const V scale = hn::Set(D(), job.gemm->scale);
  for (int64_t row = begin; row < end; ++row) {
    if (job.fetch_c) FetchRow<1>(c + next);
    ForVectors(columns, [=](int64_t i, auto access) HWY_ATTR {
      V v = access.Load(product + i);
      if (kAddSums) v = hn::Add(v, access.Load(sums + i));
      v = hn::Mul(v, scale);
      if (kAddOld) v = hn::Add(v, access.Load(c + i));
      Rounding::Store(v, c + i, access);
    });
    c += stride;
    product += kGemmPanel;
    if (kAddSums) sums += kGemmPanel;
  }
}

template <typename Rounding, typename T>
HWY_INLINE void StorePlainRows(const BlockJob& job, int64_t begin, int64_t end) {
  const bool sums = job.sums != nullptr;
  if (job.gemm->accumulate) {
    sums ? StoreRows<Rounding, T, true, true>(job, begin, end)
         : StoreRows<Rounding, T, false, true>(job, begin, end);
  } else {
    sums ? StoreRows<Rounding, T, true, false>(job, begin, end)
         : StoreRows<Rounding, T, false, false>(job, begin, end);
  }
}

// One row of an operand of the epilogue, from the block's first column on. Its element type need
// not be C's.
class RowOf {
 public:
  RowOf(const Matrix& matrix, const BlockJob& job, int64_t row)
      : dtype_(matrix.dtype),
        data_(matrix.data == nullptr
                  ? nullptr
                  : static_cast<std::byte*>(matrix.data) +
                        ((job.row + row) * matrix.row_stride + job.column) * SizeOf(dtype_)),
        next_((job.next_rows * matrix.row_stride + job.next_columns) * SizeOf(dtype_)) {}

  bool absent() const { return data_ == nullptr; }
  HWY_INLINE void FetchNext() const {
    if (absent()) return;
    if (dtype_ == DType::kF32) {
      FetchRow<0>(reinterpret_cast<const float*>(data_ + next_));
    } else {
      FetchRow<0>(reinterpret_cast<const uint16_t*>(data_ + next_));
    }
  }
  template <typename Access>
  HWY_INLINE V Load(int64_t i, Access access) const {
    if (dtype_ == DType::kF32) return access.Load(reinterpret_cast<const float*>(data_) + i);
    return dtype_ == DType::kF16 ? access.Load(reinterpret_cast<const F16*>(data_) + i)
                                 : access.Load(reinterpret_cast<const BF16*>(data_) + i);
  }
  template <typename Rounding, typename Access>
  HWY_INLINE void Store(V v, int64_t i, Access access) const {
    if (dtype_ == DType::kF32) {
      Rounding::Store(v, reinterpret_cast<float*>(data_) + i, access);
    } else if (dtype_ == DType::kF16) {
      Rounding::Store(v, reinterpret_cast<F16*>(data_) + i, access);
    } else {
      Rounding::Store(v, reinterpret_cast<BF16*>(data_) + i, access);
    }
  }

 private:
  const DType dtype_;
  std::byte* const data_;
  const int64_t next_;
};

template <typename Rounding, typename T, Epilogue kEpilogue>
HWY_INLINE void FinishEpilogueRows(const BlockJob& job, int64_t begin, int64_t end) {
  constexpr bool kRough = std::is_same_v<T, BF16>;
  const int64_t columns = job.columns();
  const float* bias = job.gemm->bias == nullptr ? nullptr : job.gemm->bias + job.column;
  const int64_t stride = job.gemm->c.row_stride;
  const int64_t next = job.next_rows * stride + job.next_columns;
  T* c = static_cast<T*>(job.gemm->c.data) + job.row * stride + job.column;
  for (int64_t row = begin; row < end; ++row) {
    const RowOf residual(job.gemm->residual, job, row), aux(job.gemm->aux, job, row);
    T* to = c + row * stride;
    if (job.fetch_c) FetchRow<1>(to + next);
    residual.FetchNext();
    if (kEpilogue == Epilogue::kGeluGrad) aux.FetchNext();
    ForVectors(columns, [=](int64_t i, auto access) HWY_ATTR {
      V v = SumAt(job, row * kGemmPanel + i, access);
      if (bias != nullptr) v = hn::Add(v, access.Load(bias + i));
      if (!residual.absent()) v = hn::Add(v, residual.Load(i, access));
      if constexpr (kEpilogue == Epilogue::kGelu) {
        // What is kept is what the activation is of: recomputed from aux, it has the same bits.
        if (!aux.absent()) {
          aux.template Store<Rounding>(v, i, access);
          v = aux.Load(i, access);
        }
        v = GeluOf<kRough>(v);
        if (kRough && !Rounding::template kFlushesSubnormals<decltype(access)>) {
          v = FlushSubnormal(v);
        }
      } else if constexpr (kEpilogue == Epilogue::kGeluGrad) {
        v = hn::Mul(v, GeluSlope<kRough>(aux.Load(i, access)));
      }
      Rounding::Store(v, to + i, access);
    });
  }
}

template <typename Rounding, typename T>
HWY_INLINE void FinishTypedRows(const BlockJob& job, int64_t begin, int64_t end) {
  const Gemm& gemm = *job.gemm;
  switch (gemm.epilogue) {
    case Epilogue::kNone:
      if (gemm.bias == nullptr && gemm.residual.data == nullptr)
        return StorePlainRows<Rounding, T>(job, begin, end);
      return FinishEpilogueRows<Rounding, T, Epilogue::kNone>(job, begin, end);
    case Epilogue::kGelu:
      return FinishEpilogueRows<Rounding, T, Epilogue::kGelu>(job, begin, end);
    case Epilogue::kGeluGrad:
      return FinishEpilogueRows<Rounding, T, Epilogue::kGeluGrad>(job, begin, end);
  }
}

// Rows [begin, end) of the block.
template <typename Rounding>
HWY_INLINE void FinishRows(const BlockJob& job, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (!job.last) {
    for (int64_t i = begin * kGemmPanel; i < end * kGemmPanel; i += hn::Lanes(D())) {
      StoreVector(hn::Add(LoadVector(job.product + i), LoadVector(job.sums + i)), job.sums + i);
    }
  } else if (job.gemm->c.dtype == DType::kF32) {
    FinishTypedRows<Rounding, float>(job, begin, end);
  } else if (job.gemm->c.dtype == DType::kF16) {
    FinishTypedRows<Rounding, F16>(job, begin, end);
  } else {
    FinishTypedRows<Rounding, BF16>(job, begin, end);
  }
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
