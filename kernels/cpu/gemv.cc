// Products of few rows, as generation makes them: B is read once, as it lies, where the blocks of
// gemm.cc would pack it first.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemv.cc"
#include <algorithm>
#include <type_traits>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// Columns of B of which one thread keeps the sums at a time, where a stored row holds one k of all.
constexpr int64_t kSumColumns = 32 * kGemmPanel;

// What an element becomes before it is multiplied.
struct AsItIs {
  static HWY_INLINE V Round(V v) { return v; }
};
// To the nearest value of bf16. A NaN stays one.
struct ToBF16 {
  static HWY_INLINE V Round(V v) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto nearest = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    const V rounded = hn::BitCast(D(), hn::And(nearest, hn::Set(du, 0xffff0000)));
    return hn::IfThenElse(hn::IsNaN(v), v, rounded);
  }
};
struct ToF16 {
  static HWY_INLINE V Round(V v) {
    HWY_ALIGN F16 half[HWY_MAX_BYTES / sizeof(float)];
    StoreVector(v, half);
    return LoadVector(half);
  }
};

// Calls f with what the precision asks for of an element of that type.
template <typename F>
HWY_INLINE void ByRounding(MatmulPrecision precision, DType dtype, const F& f) {
  if (precision == MatmulPrecision::kBF16 && dtype != DType::kBF16) {
    f(ToBF16());
  } else if (precision == MatmulPrecision::kF16 && dtype != DType::kF16) {
    f(ToF16());
  } else {
    f(AsItIs());
  }
}

// Row `row` of A in f32, rounded.
void LoadFactors(const Gemm& gemm, int64_t row, float* to) {
  ByType(gemm.a.dtype, [&](auto* type) HWY_ATTR {
    const auto* from = static_cast<decltype(type)>(gemm.a.data) + row * gemm.a.row_stride;
    ByRounding(gemm.precision, gemm.a.dtype, [&](auto rounding) HWY_ATTR {
      ForVectors(gemm.k, [&](int64_t i, auto access) HWY_ATTR {
        access.Store(rounding.Round(access.Load(from + i)), to + i);
      });
    });
  });
}

// The products of kRows rows of factors with one line of B.
template <int kRows, typename Rounding, typename T>
HWY_INLINE void Dots(const float* factors, const T* line, int64_t k, float* to) {
  constexpr int kChains = 4;
  const int64_t lanes = hn::Lanes(D());
  V sum[kRows][kChains];
  for (auto& of_row : sum) std::fill_n(of_row, kChains, hn::Zero(D()));
  int64_t i = 0;
  for (; i + kChains * lanes <= k; i += kChains * lanes) {
    for (int chain = 0; chain < kChains; ++chain) {
      const V b = Rounding::Round(LoadVector(line + i + chain * lanes));
      for (int r = 0; r < kRows; ++r) {
        const V a = LoadVector(factors + r * k + i + chain * lanes);
        sum[r][chain] = hn::MulAdd(a, b, sum[r][chain]);
      }
    }
  }
  for (; i < k; i += lanes) {
    const Tail tail{static_cast<size_t>(std::min(lanes, k - i))};
    const V b = Rounding::Round(tail.Load(line + i));
    for (int r = 0; r < kRows; ++r)
      sum[r][0] = hn::MulAdd(tail.Load(factors + r * k + i), b, sum[r][0]);
  }
  for (int r = 0; r < kRows; ++r) {
    const V all = hn::Add(hn::Add(sum[r][0], sum[r][1]), hn::Add(sum[r][2], sum[r][3]));
    to[r * kGemmPanel] = hn::GetLane(hn::SumOfLanes(D(), all));
  }
}

// Adds what kAtOnce rows of B, from row p on, give to the sums of some columns.
template <int kRows, int kAtOnce, typename Rounding, typename T>
HWY_INLINE void AddRows(const Gemm& gemm, const float* factors, int64_t p, const T* b,
                        int64_t columns, float* sums) {
  V factor[kRows][kAtOnce];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kAtOnce; ++j) factor[r][j] = hn::Set(D(), factors[r * gemm.k + p + j]);
  }
  const T* const row = b + p * gemm.b.row_stride;
  const int64_t stride = gemm.b.row_stride;
  ForVectors(columns, [&](int64_t i, auto access) HWY_ATTR {
    V values[kAtOnce];
    for (int j = 0; j < kAtOnce; ++j)
      values[j] = Rounding::Round(access.Load(row + j * stride + i));
    for (int r = 0; r < kRows; ++r) {
      V sum = access.Load(sums + r * kSumColumns + i);
      for (int j = 0; j < kAtOnce; ++j) sum = hn::MulAdd(factor[r][j], values[j], sum);
      access.Store(sum, sums + r * kSumColumns + i);
    }
  });
}

// sums[groups * kRows,kSumColumns] of some columns: a few rows of B at a time, which all rows of
// factors find in the cache.
template <int kRows, typename Rounding, typename T>
void SumRows(const Gemm& gemm, const float* factors, int64_t groups, int64_t first, int64_t columns,
             float* sums) {
  constexpr int kAtOnce = 4;
  std::fill_n(sums, groups * kRows * kSumColumns, 0.0f);
  const T* b = static_cast<const T*>(gemm.b.data) + first;
  int64_t p = 0;
  const auto add = [&]<int kCount>(std::integral_constant<int, kCount>) HWY_ATTR {
    for (int64_t g = 0; g < groups; ++g) {
      AddRows<kRows, kCount, Rounding>(gemm, factors + g * kRows * gemm.k, p, b, columns,
                                       sums + g * kRows * kSumColumns);
    }
    p += kCount;
  };
  while (p + kAtOnce <= gemm.k) add(std::integral_constant<int, kAtOnce>());
  while (p < gemm.k) add(std::integral_constant<int, 1>());
}

// One panel of columns of C from its products, [rows,32].
void FinishPanel(const Gemm& gemm, const GemmEngine& engine, int64_t panel, const float* products) {
  engine.finish({.product = products, .last = true, .gemm = &gemm, .column = panel * kGemmPanel});
}

template <int kRows, typename Rounding, typename T>
void MultiplyLines(const Gemm& gemm, const float* factors, int64_t groups, const GemmEngine& engine,
                   int64_t begin, int64_t end) {
  for (int64_t panel = begin; panel < end; ++panel) {
    HWY_ALIGN float products[kGemmPanel * kGemmPanel];
    const int64_t first = panel * kGemmPanel;
    const int64_t columns = std::min(kGemmPanel, gemm.n - first);
    for (int64_t c = 0; c < columns; ++c) {
      const T* line = static_cast<const T*>(gemm.b.data) + (first + c) * gemm.b.row_stride;
      for (int64_t g = 0; g < groups; ++g) {
        Dots<kRows, Rounding>(factors + g * kRows * gemm.k, line, gemm.k,
                              products + g * kRows * kGemmPanel + c);
      }
    }
    FinishPanel(gemm, engine, panel, products);
  }
}

template <int kRows, typename Rounding, typename T>
void MultiplyRows(const Gemm& gemm, const float* factors, int64_t groups, const GemmEngine& engine,
                  int64_t begin, int64_t end) {
  HWY_ALIGN float sums[kGemvRows * kSumColumns];
  for (int64_t group = begin; group < end; group += kSumColumns / kGemmPanel) {
    const int64_t first = group * kGemmPanel;
    const int64_t last = std::min(end, group + kSumColumns / kGemmPanel);
    SumRows<kRows, Rounding, T>(gemm, factors, groups, first,
                                std::min(gemm.n, last * kGemmPanel) - first, sums);
    for (int64_t panel = group; panel < last; ++panel) {
      HWY_ALIGN float products[kGemmPanel * kGemmPanel];
      for (int64_t r = 0; r < gemm.m; ++r)
        std::copy_n(sums + r * kSumColumns + panel * kGemmPanel - first, kGemmPanel,
                    products + r * kGemmPanel);
      FinishPanel(gemm, engine, panel, products);
    }
  }
}

// `groups` of kRows rows of factors.
template <int kRows>
void MultiplyFew(const Gemm& gemm, const float* factors, int64_t groups, const GemmEngine& engine,
                 int64_t begin, int64_t end) {
  ByType(gemm.b.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ByRounding(gemm.precision, gemm.b.dtype, [&](auto rounding) {
      using Rounding = decltype(rounding);
      if (gemm.transpose_b) {
        MultiplyLines<kRows, Rounding, T>(gemm, factors, groups, engine, begin, end);
      } else {
        MultiplyRows<kRows, Rounding, T>(gemm, factors, groups, engine, begin, end);
      }
    });
  });
}

// Panels [begin, end) of columns of C.
void MultiplyPanels(const Gemm& gemm, const float* factors, const GemmEngine& engine, int64_t begin,
                    int64_t end) {
  switch (gemm.m) {
    case 1:
      return MultiplyFew<1>(gemm, factors, 1, engine, begin, end);
    case 2:
      return MultiplyFew<2>(gemm, factors, 1, engine, begin, end);
    case 3:
      return MultiplyFew<3>(gemm, factors, 1, engine, begin, end);
    default:
      return MultiplyFew<kGemvGroup>(gemm, factors, CeilDiv(gemm.m, int64_t{kGemvGroup}), engine,
                                     begin, end);
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(LoadFactors);
HWY_EXPORT(MultiplyPanels);

bool HasFewRows(const Gemm& gemm) {
  return gemm.m >= 1 && gemm.m <= kGemvRows && !gemm.transpose_a && !gemm.accumulate &&
         gemm.precision != MatmulPrecision::kFP8;
}

Status RunGemv(const Gemm& gemm, const Context& context) {
  auto* const factors = reinterpret_cast<float*>(context.workspace);
  for (int64_t row = 0; row < gemm.m; ++row)
    HWY_DYNAMIC_DISPATCH(LoadFactors)(gemm, row, factors + row * gemm.k);
  const int64_t rows = GemvFactorRows(gemm.m);  // the last ones count for nothing
  std::fill_n(factors + gemm.m * gemm.k, (rows - gemm.m) * gemm.k, 0.0f);
  const GemmEngine engine = VectorGemmEngine(gemm.precision);
  ParallelFor(CeilDiv(gemm.n, kGemmPanel), kGemmPanel * gemm.k, context.threads,
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(MultiplyPanels)(gemm, factors, engine, begin, end);
              });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
