// Building blocks of the attention engines of attention_tiles.h: operands as grids of 1 KB tiles,
// packing into them, products of them on AMX or on vectors.
//
// An f32 value is kept as kParts bf16 values that sum to it: one (rounded to bf16), or three (exact
// to 24 bits, so that six products of parts are as exact as one f32 product). An A tile is 16 rows
// by 32 of the summed dimension; a B tile is 32 of the summed dimension by 16 columns, two
// consecutive ones interleaved in 32 bits (VNNI). Hence the transpose of an A tile in units of 32
// bits is a B tile of the transposed matrix, and the other way round.
//
// Internal to the engines. REQUIRES: HasBF16Vectors(), and for AmxUnits AmxReady().
// Thread-compatible: AMX tiles belong to the thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/bf16_vectors.h"

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,avx2,bmi2")
namespace terrace::kernels::cpu {
namespace {

inline constexpr int64_t kTile = 16;  // rows of a tile; columns of an f32 or B tile
inline constexpr int64_t kUnit = 32;  // two tiles; also the summed elements of a tile
inline constexpr int64_t kTileElements = kAmxTile;
inline constexpr int64_t kSumElements = kTile * kTile;

// A grid of operand tiles; the parts of one tile follow each other.
template <int kParts>
struct Operand {
  uint16_t* data = nullptr;
  int64_t down = 0, across = 0;  // tiles from one to the next below it, or beside it
  uint16_t* At(int64_t row, int64_t column) const {
    return data + (row * down + column * across) * kTileElements * kParts;
  }
};

// A grid of f32 tiles, 16 x 16, row-major.
struct Sums {
  float* data = nullptr;
  int64_t down = 0, across = 0;
  float* At(int64_t row, int64_t column) const {
    return data + (row * down + column * across) * kSumElements;
  }
};

// Both have Multiply: C = (+=) A B for 2 x 2 tiles of C, over `depth` tiles of the summed
// dimension; each operand is given from its first tile. A Thread lives while a thread multiplies.
struct AmxUnits {
  using Thread = AmxTiles;
  template <int kParts, bool kAccumulate>
  static void Multiply(const Operand<kParts>& a, const Operand<kParts>& b, int64_t depth,
                       const Sums& c) {
    AmxFence();
    if constexpr (kAccumulate) {
      _tile_loadd(0, c.At(0, 0), 64);
      _tile_loadd(1, c.At(0, 1), 64);
      _tile_loadd(2, c.At(1, 0), 64);
      _tile_loadd(3, c.At(1, 1), 64);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t k = 0; k < depth; ++k) {
      for (int i = 0; i < kParts; ++i) {
        _tile_loadd(4, a.At(0, k) + i * kTileElements, 64);
        _tile_loadd(5, a.At(1, k) + i * kTileElements, 64);
        // Products of parts below 2^-24 of the whole are left out.
        for (int j = 0; j < kParts - i; ++j) {
          _tile_loadd(6, b.At(k, 0) + j * kTileElements, 64);
          _tile_loadd(7, b.At(k, 1) + j * kTileElements, 64);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
    _tile_stored(0, c.At(0, 0), 64);
    _tile_stored(1, c.At(0, 1), 64);
    _tile_stored(2, c.At(1, 0), 64);
    _tile_stored(3, c.At(1, 1), 64);
  }
};

struct VectorUnits {
  struct Thread {};
  template <int kParts, bool kAccumulate>
  static void Multiply(const Operand<kParts>& a, const Operand<kParts>& b, int64_t depth,
                       const Sums& c) {
    static_assert(kParts == 1, "three parts are slower on vectors than f32 arithmetic");
    for (int64_t row = 0; row < kUnit; row += kPairRows) {
      const int64_t tile = row / kTile, at = row % kTile;
      SumPairs<kAccumulate>({.a = a.At(tile, 0) + at * kTileLine,
                             .left = b.At(0, 0),
                             .right = b.At(0, 1),
                             .a_next = a.across * kTileElements,
                             .b_next = b.down * kTileElements,
                             .depth = depth},
                            {.left = c.At(tile, 0) + at * kTile,
                             .right = c.At(tile, 1) + at * kTile,
                             .stride = kTile});
    }
  }
};

inline __m512 WidenLow(__m512i bf16) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(bf16)), 16));
}
inline __m512 WidenHigh(__m512i bf16) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bf16, 1)), 16));
}

// 32 values to the rows of kParts tiles, `out` being the row in the first of them.
template <int kParts>
inline void StoreParts(__m512 low, __m512 high, uint16_t* out) {
  for (int part = 0; part < kParts; ++part) {
    const __m512i bits = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    _mm512_store_si512(out + part * kTileElements, bits);
    if (part + 1 == kParts) break;
    low = _mm512_sub_ps(low, WidenLow(bits));
    high = _mm512_sub_ps(high, WidenHigh(bits));
  }
}

// Rows i and i + 1 of two A tiles side by side (32 columns each) to the row of two B tiles.
inline void Interleave(const uint16_t* row, const uint16_t* next, uint16_t* left, uint16_t* right) {
  alignas(64) static constexpr uint16_t kLeft[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                     37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                     11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i left_index = _mm512_load_si512(kLeft);
  const __m512i right_index = _mm512_add_epi16(left_index, _mm512_set1_epi16(16));
  const __m512i a = _mm512_load_si512(row), b = _mm512_load_si512(next);
  _mm512_store_si512(left, _mm512_permutex2var_epi16(a, left_index, b));
  _mm512_store_si512(right, _mm512_permutex2var_epi16(a, right_index, b));
}

inline void TransposeTile(const void* from, void* to) {
  __m512i r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(static_cast<const __m512i*>(from) + i);
  Transpose16x16(r);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(static_cast<__m512i*>(to) + i, r[i]);
}

inline __mmask16 ColumnMask(int64_t columns) {
  return columns >= kTile ? 0xffff
                          : static_cast<__mmask16>((1u << std::max<int64_t>(columns, 0)) - 1);
}

// 16 values from column `column` of a row of `width` columns; those beyond are 0.
inline __m512 LoadColumns(const HeadRows& rows, int64_t row, int64_t column, int64_t width) {
  const __mmask16 mask = ColumnMask(width - column);
  const int64_t at = row * rows.row_stride + column;
  if (rows.dtype == DType::kF32) {
    return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(rows.data) + at);
  }
  const __m256i bits = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(rows.data) + at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline void StoreColumns(const HeadRows& rows, int64_t row, int64_t column, int64_t width,
                         __m512 values) {
  const __mmask16 mask = ColumnMask(width - column);
  const int64_t at = row * rows.row_stride + column;
  if (rows.dtype == DType::kF32) {
    _mm512_mask_storeu_ps(static_cast<float*>(rows.data) + at, mask, values);
    return;
  }
  const __m256i bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
  _mm256_mask_storeu_epi16(static_cast<uint16_t*>(rows.data) + at, mask, bits);
}

// A matrix M as operands; those without data are not made.
template <int kParts>
struct Packed {
  Operand<kParts> a;    // A tiles of M
  Operand<kParts> b;    // B tiles of M
  Operand<kParts> a_t;  // A tiles of M's transpose
  Operand<kParts> b_t;  // B tiles of M's transpose
};

// Rows [32 down, 32 down + 32) from `first` on, columns [32 across, 32 across + 32); zero beyond
// `end` and `width`.
template <int kParts>
void PackUnit(const HeadRows& rows, int64_t first, int64_t end, int64_t width, int64_t down,
              int64_t across, const Packed<kParts>& to) {
  alignas(64) uint16_t upper[kParts * kTileElements], lower[kParts * kTileElements];
  alignas(64) uint16_t left[kParts * kTileElements], right[kParts * kTileElements];
  const int64_t column = across * kUnit;
  for (int64_t i = 0; i < kUnit; ++i) {
    const int64_t row = first + down * kUnit + i;
    const bool inside = row < end;
    const __m512 low = inside ? LoadColumns(rows, row, column, width) : _mm512_setzero_ps();
    const __m512 high =
        inside ? LoadColumns(rows, row, column + kTile, width) : _mm512_setzero_ps();
    StoreParts<kParts>(low, high, (i < kTile ? upper : lower) + i % kTile * kUnit);
  }
  if (to.b.data != nullptr || to.a_t.data != nullptr) {
    for (int64_t part = 0; part < kParts * kTileElements; part += kTileElements) {
      for (int64_t i = 0; i < kTile; ++i) {
        const uint16_t* from = (i < 8 ? upper : lower) + part + 2 * (i % 8) * kUnit;
        Interleave(from, from + kUnit, left + part + i * kUnit, right + part + i * kUnit);
      }
    }
  }
  for (int64_t part = 0; part < kParts * kTileElements; part += kTileElements) {
    const auto copy = [&](const uint16_t* from, uint16_t* tile) {
      std::copy_n(from + part, kTileElements, tile + part);
    };
    if (to.a.data != nullptr) {
      copy(upper, to.a.At(2 * down, across));
      copy(lower, to.a.At(2 * down + 1, across));
    }
    if (to.b.data != nullptr) {
      copy(left, to.b.At(down, 2 * across));
      copy(right, to.b.At(down, 2 * across + 1));
    }
    if (to.a_t.data != nullptr) {
      TransposeTile(left + part, to.a_t.At(2 * across, down) + part);
      TransposeTile(right + part, to.a_t.At(2 * across + 1, down) + part);
    }
    if (to.b_t.data != nullptr) {
      TransposeTile(upper + part, to.b_t.At(across, 2 * down) + part);
      TransposeTile(lower + part, to.b_t.At(across, 2 * down + 1) + part);
    }
  }
}

template <int kParts>
void Pack(const HeadRows& rows, int64_t first, int64_t count, int64_t end, int64_t width,
          int64_t padded, const Packed<kParts>& to) {
  for (int64_t down = 0; down < count / kUnit; ++down) {
    for (int64_t across = 0; across < padded / kUnit; ++across) {
      PackUnit<kParts>(rows, first, end, width, down, across, to);
    }
  }
}

// 2^x, with a relative error of 3e-6 where the result is rounded to bf16 and 2e-9 plus rounding
// elsewhere. Any finite x.
template <int kParts>
inline __m512 Exp2(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  __m512 y;
  if constexpr (kParts == 1) {
    y = _mm512_set1_ps(0.0095701019f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.055917860f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.24024745f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.69312181f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.99999926f));
  } else {
    y = _mm512_set1_ps(0.00015345812f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.0013399931f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.0096184890f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.055503288f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.24022647f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.69314721f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  }
  return _mm512_scalef_ps(y, whole);
}

}  // namespace
}  // namespace terrace::kernels::cpu
HWY_POP_ATTRIBUTES
