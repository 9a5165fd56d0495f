// The product's engine for any CPU: f32 multiply-adds on the widest vectors that it has. bf16 and
// f16 products multiply operands rounded to that type, which f32 arithmetic does exactly.
//
// A panel's chunk is [k, 32] f32, for A and B alike.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_vectors.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/gemm_finish-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// The micro-kernel's rows, beside two vectors of columns: as many accumulators as the registers
// hold.
constexpr int64_t kRows = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

// Sums of fewer products are not split.
constexpr int64_t kShortChain = 16;

// v rounded to the type, still as f32.
template <typename Rounded>
HWY_INLINE V RoundTo(V v) {
  if constexpr (std::is_same_v<Rounded, float>) return v;
  HWY_ALIGN Rounded buffer[HWY_MAX_BYTES / sizeof(float)];
  StoreVector(v, buffer);
  return LoadVector(buffer);
}

template <typename Rounded, typename T, typename Access>
HWY_INLINE V LoadRounded(const PackSource& source, int64_t index, Access access) {
  const V v = access.Load(static_cast<const T*>(source.data) + index);
  return std::is_same_v<Rounded, T> ? v : RoundTo<Rounded>(v);
}

template <typename Rounded, typename Access>
HWY_INLINE V LoadOperand(const PackSource& source, int64_t index, Access access) {
  if (source.dtype == DType::kBF16) return LoadRounded<Rounded, BF16>(source, index, access);
  if (source.dtype == DType::kF16) return LoadRounded<Rounded, F16>(source, index, access);
  return LoadRounded<Rounded, float>(source, index, access);
}

// A stored row holds one k of every line: copied as it is.
template <typename Rounded>
void PackRowsOfK(const PackSource& source, const PanelRange& range, float* panel) {
  const int64_t lines = std::clamp<int64_t>(source.lines - range.first_line, 0, kGemmPanel);
  for (int64_t p = 0; p < range.k; ++p) {
    float* to = panel + p * kGemmPanel;
    const int64_t k = range.first_k + p;
    const int64_t valid = k < source.k ? lines : 0;
    std::fill(to + valid, to + kGemmPanel, 0.0f);
    const int64_t from = k * source.stride + range.first_line;
    ForVectors(valid, [&](int64_t i, auto access) HWY_ATTR {
      access.Store(LoadOperand<Rounded>(source, from + i, access), to + i);
    });
  }
}

// A stored row is a line: four of them are converted a vector at a time, interleaved, and scattered
// down the panel.
template <typename Rounded>
void PackLines(const PackSource& source, const PanelRange& range, float* panel) {
  constexpr int64_t kLines = 4;
  HWY_ALIGN float buffer[kLines * HWY_MAX_BYTES / sizeof(float)];
  const D d;
  const int64_t valid_k = std::clamp<int64_t>(source.k - range.first_k, 0, range.k);
  for (int64_t line = 0; line < kGemmPanel; line += kLines) {
    float* to = panel + line;
    ForVectors(valid_k, [&](int64_t p, auto access) HWY_ATTR {
      const auto load = [&](int64_t i) HWY_ATTR {
        const int64_t from = range.first_line + line + i;
        if (from >= source.lines) return hn::Zero(d);
        return LoadOperand<Rounded>(source, from * source.stride + range.first_k + p, access);
      };
      hn::StoreInterleaved4(load(0), load(1), load(2), load(3), d, buffer);
      const int64_t count = std::min<int64_t>(hn::Lanes(d), valid_k - p);
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(to + (p + i) * kGemmPanel, buffer + i * kLines, kLines * sizeof(float));
      }
    });
    for (int64_t p = valid_k; p < range.k; ++p) std::fill_n(to + p * kGemmPanel, kLines, 0.0f);
  }
}

template <typename Rounded>
void PackPanel(const PackSource& source, const PanelRange& range, std::byte* panel) {
  float* to = reinterpret_cast<float*>(panel);
  if (source.k_contiguous) {
    PackLines<Rounded>(source, range, to);
  } else {
    PackRowsOfK<Rounded>(source, range, to);
  }
}

// Both panels from the micro-kernel's first row or column on.
struct Factors {
  const float* a;
  const float* b;
};

// The sums over k in [begin, end) of kRows rows by two vectors of columns, to `block` or added to
// what is there.
template <bool kAdd>
HWY_INLINE void SumProducts(const Factors& factors, int64_t begin, int64_t end, float* block) {
  const D d;
  const int64_t lanes = hn::Lanes(d);
  V sum[kRows][2];
  for (int64_t r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
  for (int64_t p = begin; p < end; ++p) {
    const float* a = factors.a + p * kGemmPanel;
    const V b0 = hn::LoadU(d, factors.b + p * kGemmPanel);
    const V b1 = hn::LoadU(d, factors.b + p * kGemmPanel + lanes);
    for (int64_t r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, a[r]);
      sum[r][0] = hn::MulAdd(factor, b0, sum[r][0]);
      sum[r][1] = hn::MulAdd(factor, b1, sum[r][1]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    float* to = block + r * kGemmPanel;
    if constexpr (kAdd) {
      sum[r][0] = hn::Add(sum[r][0], hn::LoadU(d, to));
      sum[r][1] = hn::Add(sum[r][1], hn::LoadU(d, to + lanes));
    }
    hn::StoreU(sum[r][0], d, to);
    hn::StoreU(sum[r][1], d, to + lanes);
  }
}

// A chunk is summed in two halves: the rounding error of a sum grows with the length of its chains.
void MultiplyPanels(const BlockProduct& product, const BlockJob& previous) {
  FinishRows<BF16ByArithmetic>(previous, 0, previous.rows());
  const int64_t lanes = hn::Lanes(D());
  const int64_t half = product.k < kShortChain ? product.k : product.k / 2;
  const float* a = reinterpret_cast<const float*>(product.a);
  const float* b = reinterpret_cast<const float*>(product.b);
  for (int64_t row = 0; row < kGemmPanel; row += kRows) {
    for (int64_t column = 0; column < kGemmPanel; column += 2 * lanes) {
      float* block = product.block + row * kGemmPanel + column;
      const Factors factors = {a + row, b + column};
      SumProducts<false>(factors, 0, half, block);
      if (half < product.k) SumProducts<true>(factors, half, product.k, block);
    }
  }
}

void Finish(const BlockJob& job) { FinishRows<BF16ByArithmetic>(job, 0, job.rows()); }

GemmEngine MakeVectorEngine(MatmulPrecision precision) {
  auto pack = PackPanel<float>;
  if (precision == MatmulPrecision::kBF16) pack = PackPanel<BF16>;
  if (precision == MatmulPrecision::kF16) pack = PackPanel<F16>;
  return {.arithmetic = kVectorArithmetic,
          .pack_a = pack,
          .pack_b = pack,
          .multiply = MultiplyPanels,
          .finish = Finish};
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(MakeVectorEngine);

GemmEngine VectorGemmEngine(MatmulPrecision precision) {
  return HWY_DYNAMIC_DISPATCH(MakeVectorEngine)(precision);
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
