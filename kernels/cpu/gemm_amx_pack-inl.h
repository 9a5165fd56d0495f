// Packs panels for the AMX engine: rounds elements to bf16 or splits them into three bf16 parts,
// and brings pairs of K together.
//
// A panel's chunk is laid out as amx.h says; of three parts, each step holds hi, then mid, then lo,
// and pairs are (k, k + 16) instead of neighbours, which needs no shuffling.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Empty below AVX-512. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_GEMM_AMX_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_GEMM_AMX_PACK_INL_H_
#undef TERRACE_KERNELS_CPU_GEMM_AMX_PACK_INL_H_
#else
#define TERRACE_KERNELS_CPU_GEMM_AMX_PACK_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_engine.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
#if HWY_TARGET <= HWY_AVX3

inline constexpr int kTileRows = 16;
inline constexpr int kParts = 3;

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
  return {_mm512_maskz_loadu_ps(Lanes16(count), from),
          _mm512_maskz_loadu_ps(Lanes16(count - 16), from + 16)};
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

// x rounded to the upper 16 bits, half away from zero; towards zero where that would overflow, and
// for NaN and infinity.
TERRACE_AMX inline __m512 RoundUpper(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 ordinary = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(0x7f7f8000));
  const __m512i rounded = _mm512_mask_add_epi32(bits, ordinary, bits, _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(
      _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Both differences are exact, and so is the last part: 24 bits are three times eight. The rest is
// too small to overflow, and if it is NaN then hi is infinite or NaN.
TERRACE_AMX inline Parts Split(__m512 x) {
  const __m512 hi = RoundUpper(x);
  const __m512 rest = _mm512_sub_ps(x, hi);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i half_up = _mm512_add_epi32(_mm512_castps_si512(rest), _mm512_set1_epi32(0x8000));
  const __m512 mid = _mm512_castsi512_ps(_mm512_and_si512(half_up, upper));
  return {{hi, mid, _mm512_sub_ps(rest, mid)}};
}

// One tile's worth of a source, before it is known which way round the tile wants it: tile[part][i]
// is line i with its 16 pairs of K where lines are contiguous, else pair i with its 16 lines.
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
  if (source.dtype == DType::kF32)
    return LoadF32(static_cast<const float*>(source.data) + index, count);
  const __m512i bits = LoadBF16(static_cast<const uint16_t*>(source.data) + index, count);
  return {Widen(_mm512_castsi512_si256(bits)), Widen(_mm512_extracti64x4_epi64(bits, 1))};
}

TERRACE_AMX inline void LoadLinesInParts(const PackSource& source, int64_t line, int64_t k,
                                         Loaded* loaded) {
  for (int i = 0; i < kTileRows; ++i) {
    const int64_t valid = line + i < source.lines ? source.k - k : 0;
    const Pair x = LoadWide(source, (line + i) * source.stride + k, valid);
    const Parts low = Split(x.low), high = Split(x.high);
    for (int p = 0; p < kParts; ++p) loaded->v[p][i] = PairUp(low.part[p], high.part[p]);
  }
}

// Interleaves two rows of 16 elements.
TERRACE_AMX inline __m512i Interleave(__m512i row_pair) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, row_pair);
}

template <typename T>
TERRACE_AMX inline void LoadRowsOfK(const PackSource& source, int64_t line, int64_t k, __m512i* v) {
  const __mmask16 lanes = Lanes16(source.lines - line);
  const T* from = static_cast<const T*>(source.data) + k * source.stride + line;
  for (int i = 0; i < kTileRows; ++i, from += 2 * source.stride) {
    const __mmask16 even = k + 2 * i < source.k ? lanes : 0,
                    odd = k + 2 * i + 1 < source.k ? lanes : 0;
    if constexpr (std::is_same_v<T, float>) {
      v[i] = Interleave(ToBF16(
          {_mm512_maskz_loadu_ps(even, from), _mm512_maskz_loadu_ps(odd, from + source.stride)}));
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

TERRACE_AMX inline void LoadRowsOfKInParts(const PackSource& source, int64_t line, int64_t k,
                                           Loaded* loaded) {
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

// Tiles of A are rows of K pairs, tiles of B rows of columns.
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
    wide ? PackOnePart<kIsB, true, float>(source, range, to)
         : PackOnePart<kIsB, true, uint16_t>(source, range, to);
  } else {
    wide ? PackOnePart<kIsB, false, float>(source, range, to)
         : PackOnePart<kIsB, false, uint16_t>(source, range, to);
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

#endif  // HWY_TARGET <= HWY_AVX3
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
