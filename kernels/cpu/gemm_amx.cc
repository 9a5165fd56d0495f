// The product's engine on AMX tiles.
//
// bf16: elements are rounded to bf16 while they are packed. f32: each element is split into three bf16 parts that add up
// to it, x = hi + mid + lo, and six of the nine products of parts are summed in f32. What is left out is at most 2^-23 of
// a product, of either sign, and on average below 2^-26: less than f32 loses when it adds. Sums of 128 products at a time
// are short enough that the sixfold number of additions does not show: errors are measured at a fraction of those of a
// plain f32 product (tests/unit/kernels/gemm).
//
// The limits of the split: an element below 2^-126 counts as zero, one below 2^-102 has fewer bits, and so has a product
// below 2^-102. The absolute error of that is less than 2^-124 (|a| + |b| + 1) a term. Infinite and NaN elements make
// the results that they enter NaN or infinite. Finite elements never become infinite.
//
// A panel's chunk is laid out as amx.h says; of three parts, each step holds hi, then mid, then lo, and pairs are (k, k + 16)
// instead of neighbours, which needs no shuffling.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_amx.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/gemm_finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

#if HWY_TARGET <= HWY_AVX3

constexpr int kTileRows = 16;
constexpr int kParts = 3;

// The first `count` of 16 or 32 lanes.
TERRACE_AMX inline __mmask16 Lanes16(int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, 16)) - 1);
}
TERRACE_AMX inline __mmask32 Lanes32(int64_t count) {
  return static_cast<__mmask32>((uint64_t{1} << std::clamp<int64_t>(count, 0, 32)) - 1);
}

// 32 elements as two vectors of f32.
struct Pair {
  __m512 low, high;
};

TERRACE_AMX inline Pair LoadF32(const float* from, int64_t count) {
  return {_mm512_maskz_loadu_ps(Lanes16(count), from), _mm512_maskz_loadu_ps(Lanes16(count - 16), from + 16)};
}
TERRACE_AMX inline __m512i LoadBF16(const uint16_t* from, int64_t count) {
  return _mm512_maskz_loadu_epi16(Lanes32(count), from);
}
TERRACE_AMX inline __m512 Widen(__m256i bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

TERRACE_AMX inline __m512i ToBF16(Pair x) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(x.high, x.low));
}

// Sixteen dwords (upper half of first[i], upper half of second[i]).
TERRACE_AMX inline __m512i PairUp(__m512 first, __m512 second) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(first), 16),
                                 _mm512_castps_si512(second));
}

struct Parts {
  __m512 part[kParts];
};

// x rounded to the upper 16 bits, half away from zero; towards zero where that would overflow, and for NaN and infinity.
TERRACE_AMX inline __m512 RoundUpper(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 ordinary = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(0x7f7f8000));
  const __m512i rounded = _mm512_mask_add_epi32(bits, ordinary, bits, _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Both differences are exact, and so is the last part: 24 bits are three times eight. The rest is too small to overflow, and
// if it is NaN then hi is infinite or NaN.
TERRACE_AMX inline Parts Split(__m512 x) {
  const __m512 hi = RoundUpper(x);
  const __m512 rest = _mm512_sub_ps(x, hi);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i half_up = _mm512_add_epi32(_mm512_castps_si512(rest), _mm512_set1_epi32(0x8000));
  const __m512 mid = _mm512_castsi512_ps(_mm512_and_si512(half_up, upper));
  return {{hi, mid, _mm512_sub_ps(rest, mid)}};
}

// One tile's worth of a source, before it is known which way round the tile wants it: tile[part][i] is line i with its 16
// pairs of K where lines are contiguous, else pair i with its 16 lines.
struct Loaded {
  __m512i v[kParts][kTileRows];
};

template <typename T>
TERRACE_AMX inline void LoadLines(const PackSource& source, int64_t line, int64_t k, __m512i* v) {
  const int64_t count = source.k - k;
  const T* from = static_cast<const T*>(source.data) + line * source.stride + k;
  for (int i = 0; i < kTileRows; ++i, from += source.stride) {
    const int64_t valid = line + i < source.lines ? count : 0;
    if constexpr (std::is_same_v<T, float>) {
      v[i] = ToBF16(LoadF32(from, valid));
    } else {
      v[i] = LoadBF16(from, valid);
    }
  }
}

TERRACE_AMX inline Pair LoadWide(const PackSource& source, int64_t index, int64_t count) {
  if (source.dtype == DType::kF32) return LoadF32(static_cast<const float*>(source.data) + index, count);
  const __m512i bits = LoadBF16(static_cast<const uint16_t*>(source.data) + index, count);
  return {Widen(_mm512_castsi512_si256(bits)), Widen(_mm512_extracti64x4_epi64(bits, 1))};
}

TERRACE_AMX inline void LoadLinesInParts(const PackSource& source, int64_t line, int64_t k, Loaded* loaded) {
  for (int i = 0; i < kTileRows; ++i) {
    const int64_t valid = line + i < source.lines ? source.k - k : 0;
    const Pair x = LoadWide(source, (line + i) * source.stride + k, valid);
    const Parts low = Split(x.low), high = Split(x.high);
    for (int p = 0; p < kParts; ++p) loaded->v[p][i] = PairUp(low.part[p], high.part[p]);
  }
}

// Interleaves two rows of 16 elements.
TERRACE_AMX inline __m512i Interleave(__m512i row_pair) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, row_pair);
}

template <typename T>
TERRACE_AMX inline void LoadRowsOfK(const PackSource& source, int64_t line, int64_t k, __m512i* v) {
  const __mmask16 lanes = Lanes16(source.lines - line);
  const T* from = static_cast<const T*>(source.data) + k * source.stride + line;
  for (int i = 0; i < kTileRows; ++i, from += 2 * source.stride) {
    const __mmask16 even = k + 2 * i < source.k ? lanes : 0, odd = k + 2 * i + 1 < source.k ? lanes : 0;
    if constexpr (std::is_same_v<T, float>) {
      v[i] = Interleave(ToBF16({_mm512_maskz_loadu_ps(even, from), _mm512_maskz_loadu_ps(odd, from + source.stride)}));
    } else {
      const __m256i low = _mm256_maskz_loadu_epi16(even, from);
      const __m256i high = _mm256_maskz_loadu_epi16(odd, from + source.stride);
      v[i] = Interleave(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
    }
  }
}

TERRACE_AMX inline __m512 LoadWide16(const PackSource& source, int64_t index, __mmask16 lanes) {
  if (source.dtype == DType::kF32) {
    return _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(source.data) + index);
  }
  return Widen(_mm256_maskz_loadu_epi16(lanes, static_cast<const uint16_t*>(source.data) + index));
}

TERRACE_AMX inline void LoadRowsOfKInParts(const PackSource& source, int64_t line, int64_t k, Loaded* loaded) {
  const __mmask16 lanes = Lanes16(source.lines - line);
  for (int i = 0; i < kTileRows; ++i) {
    const int64_t row = k + i, other = row + 16;
    const __mmask16 in_row = row < source.k ? lanes : 0, in_other = other < source.k ? lanes : 0;
    const Parts first = Split(LoadWide16(source, row * source.stride + line, in_row));
    const Parts second = Split(LoadWide16(source, other * source.stride + line, in_other));
    for (int p = 0; p < kParts; ++p) loaded->v[p][i] = PairUp(first.part[p], second.part[p]);
  }
}

TERRACE_AMX inline void StoreTile(__m512i* v, bool transpose, uint16_t* tile) {
  if (transpose) Transpose16x16(v);
  for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(tile + 32 * i, v[i]);
}

// Tiles of A are rows of K pairs, tiles of B rows of columns. Steps are taken a few at a time, so that reads run along
// lines and writes stay in a few places.
template <bool kIsB, bool kLines, typename T>
TERRACE_AMX void PackOnePart(const PackSource& source, const PanelRange& range, uint16_t* panel) {
  for (int64_t step = 0; step < range.k / kAmxStep; ++step) {
    const int64_t k = range.first_k + step * kAmxStep;
    for (int half = 0; half < 2; ++half) {
      const int64_t line = range.first_line + half * kTileRows;
      __m512i v[kTileRows];
      if constexpr (kLines) {
        LoadLines<T>(source, line, k, v);
      } else {
        LoadRowsOfK<T>(source, line, k, v);
      }
      StoreTile(v, kLines == kIsB, panel + step * kAmxPanelStep + half * kAmxTile);
    }
  }
}

template <bool kIsB>
void PackBF16(const PackSource& source, const PanelRange& range, std::byte* panel) {
  uint16_t* to = reinterpret_cast<uint16_t*>(panel);
  const bool wide = source.dtype == DType::kF32;
  if (source.k_contiguous) {
    wide ? PackOnePart<kIsB, true, float>(source, range, to) : PackOnePart<kIsB, true, uint16_t>(source, range, to);
  } else {
    wide ? PackOnePart<kIsB, false, float>(source, range, to) : PackOnePart<kIsB, false, uint16_t>(source, range, to);
  }
}

template <bool kIsB>
TERRACE_AMX void PackSplit(const PackSource& source, const PanelRange& range, std::byte* panel) {
  uint16_t* to = reinterpret_cast<uint16_t*>(panel);
  for (int64_t step = 0; step < range.k / kAmxStep; ++step) {
    const int64_t k = range.first_k + step * kAmxStep;
    for (int half = 0; half < 2; ++half) {
      const int64_t line = range.first_line + half * kTileRows;
      Loaded loaded;
      if (source.k_contiguous) {
        LoadLinesInParts(source, line, k, &loaded);
      } else {
        LoadRowsOfKInParts(source, line, k, &loaded);
      }
      for (int p = 0; p < kParts; ++p) {
        uint16_t* tile = to + (step * kParts + p) * kAmxPanelStep + half * kAmxTile;
        StoreTile(loaded.v[p], source.k_contiguous == kIsB, tile);
      }
    }
  }
}

// Finishes the previous block in pieces, one a step.
class Finisher {
 public:
  Finisher(const BlockJob& job, int64_t steps)
      : job_(job), rows_(job.rows()), rows_a_step_(CeilDiv(rows_, std::max<int64_t>(steps, 1))) {}
  void Step() {
    if (row_ >= rows_) return;
    const int64_t end = std::min(rows_, row_ + rows_a_step_);
    FinishRows<BF16ByInstruction>(job_, row_, end);
    row_ = end;
  }

 private:
  const BlockJob& job_;
  const int64_t rows_, rows_a_step_;
  int64_t row_ = 0;
};

template <bool kStreamA>
TERRACE_AMX void MultiplyBF16Panels(const BlockProduct& product, const BlockJob& previous) {
  const uint16_t* a = reinterpret_cast<const uint16_t*>(product.a);
  const uint16_t* b = reinterpret_cast<const uint16_t*>(product.b);
  const int64_t steps = product.k / kAmxStep;
  Finisher finisher(previous, steps);
  AmxFence();
  AmxZeroBlock();
  for (int64_t step = 0; step < steps; ++step) {
    if constexpr (kStreamA) {
      AmxStepStreamA(a, b);
    } else {
      AmxStepStreamB(a, b);
    }
    a += kAmxPanelStep;
    b += kAmxPanelStep;
    finisher.Step();
  }
  AmxStoreBlock(product.block, kGemmPanel);
}

void MultiplyBF16(const BlockProduct& product, const BlockJob& previous) {
  product.stream_a ? MultiplyBF16Panels<true>(product, previous) : MultiplyBF16Panels<false>(product, previous);
}

template <bool kStream>
TERRACE_AMX inline void LoadA(const uint16_t* a) {
  if constexpr (kStream) {
    _tile_stream_loadd(4, a, 64);
    _tile_stream_loadd(5, a + kAmxTile, 64);
  } else {
    _tile_loadd(4, a, 64);
    _tile_loadd(5, a + kAmxTile, 64);
  }
}
template <bool kStream>
TERRACE_AMX inline void LoadB(const uint16_t* b) {
  if constexpr (kStream) {
    _tile_stream_loadd(6, b, 64);
    _tile_stream_loadd(7, b + kAmxTile, 64);
  } else {
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kAmxTile, 64);
  }
}
TERRACE_AMX inline void MultiplyLoaded() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Seven loads for six products of parts, the small ones first.
template <bool kStreamA>
TERRACE_AMX inline void MultiplySplitStep(const uint16_t* a, const uint16_t* b) {
  constexpr int64_t kMid = kAmxPanelStep, kLo = 2 * kAmxPanelStep;
  LoadA<kStreamA>(a + kLo);
  LoadB<!kStreamA>(b);
  MultiplyLoaded();
  LoadA<kStreamA>(a + kMid);
  MultiplyLoaded();
  LoadB<!kStreamA>(b + kMid);
  MultiplyLoaded();
  LoadA<kStreamA>(a);
  MultiplyLoaded();
  LoadB<!kStreamA>(b + kLo);
  MultiplyLoaded();
  LoadB<!kStreamA>(b);
  MultiplyLoaded();
}

template <bool kStreamA>
TERRACE_AMX void MultiplySplitPanels(const BlockProduct& product, const BlockJob& previous) {
  const uint16_t* a = reinterpret_cast<const uint16_t*>(product.a);
  const uint16_t* b = reinterpret_cast<const uint16_t*>(product.b);
  const int64_t steps = product.k / kAmxStep;
  Finisher finisher(previous, steps);
  AmxFence();
  AmxZeroBlock();
  for (int64_t step = 0; step < steps; ++step) {
    MultiplySplitStep<kStreamA>(a, b);
    a += kParts * kAmxPanelStep;
    b += kParts * kAmxPanelStep;
    finisher.Step();
  }
  AmxStoreBlock(product.block, kGemmPanel);
}

void MultiplySplit(const BlockProduct& product, const BlockJob& previous) {
  product.stream_a ? MultiplySplitPanels<true>(product, previous) : MultiplySplitPanels<false>(product, previous);
}

void Finish(const BlockJob& job) { FinishRows<BF16ByInstruction>(job, 0, job.rows()); }

// Tile configuration outlives a scope here: the driver pairs the two calls.
void BeginThread() { AmxConfigureTiles(); }
void EndThread() { AmxReleaseTiles(); }

GemmEngine MakeAmxEngine(MatmulPrecision precision) {
  const bool bf16 = precision == MatmulPrecision::kBF16;
  return {.arithmetic = bf16 ? kAmxBF16Arithmetic : kAmxSplitArithmetic,
          .pack_a = bf16 ? PackBF16<false> : PackSplit<false>,
          .pack_b = bf16 ? PackBF16<true> : PackSplit<true>,
          .multiply = bf16 ? MultiplyBF16 : MultiplySplit,
          .finish = Finish,
          .begin_thread = BeginThread,
          .end_thread = EndThread};
}

#else

// No CPU has AMX without AVX-512.
GemmEngine MakeAmxEngine(MatmulPrecision) { return {}; }

#endif  // HWY_TARGET <= HWY_AVX3

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(MakeAmxEngine);

GemmEngine AmxGemmEngine(MatmulPrecision precision) {
  return HWY_DYNAMIC_DISPATCH(MakeAmxEngine)(precision);
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
