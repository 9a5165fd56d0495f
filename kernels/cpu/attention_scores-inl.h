// What both passes of the attention engines on tiles do to scores and results: masks, and rows from
// transposed tiles.
//
// Internal to attention_tiles_forward.cc and attention_tiles_backward.cc, as attention_tiles-inl.h.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_tiles-inl.h"

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,avx2,bmi2")
namespace terrace::kernels::cpu {
namespace {

// True when 32 keys from `key` and 32 queries from `query` hold pairs that must not see each other.
inline bool NeedsMask(const AttentionProblem& p, int64_t key, int64_t query) {
  return key + kUnit - 1 > query + p.offset || key < p.FirstKey(query + kUnit - 1) ||
         key + kUnit > p.keys;
}

// Overwrites the scores of pairs that must not see each other, in 2 x 2 tiles.
inline void MaskPiece(const AttentionProblem& p, int64_t key, int64_t query, const Sums& scores) {
  const int64_t window = p.attrs.window > 0 ? p.attrs.window : INT32_MAX;
  const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i limit =
      _mm512_set1_epi32(static_cast<int32_t>(std::min<int64_t>(window, INT32_MAX)));
  alignas(64) int32_t documents[kUnit] = {};  // the first keys of the queries' documents
  for (int64_t i = 0; i < kUnit && p.starts != nullptr; ++i)
    documents[i] = static_cast<int32_t>(p.DocumentKey(query + i));
  for (int64_t tile = 0; tile < 4; ++tile) {
    float* at = scores.At(tile / 2, tile % 2);
    const __m512i document = _mm512_load_si512(documents + tile % 2 * kTile);
    for (int64_t r = 0; r < kTile; ++r) {
      // How far the query is behind the key: 0 is itself, below 0 in its past.
      const int64_t row = key + tile / 2 * kTile + r;
      const int64_t behind = query + p.offset + tile % 2 * kTile - row;
      const __m512i distance = _mm512_add_epi32(iota, _mm512_set1_epi32(static_cast<int>(behind)));
      const __mmask16 inside = row < p.keys ? 0xffff : 0;  // not padding
      const __mmask16 visible =
          inside & _mm512_cmpge_epi32_mask(distance, _mm512_setzero_si512()) &
          _mm512_cmplt_epi32_mask(distance, limit) &
          _mm512_cmple_epi32_mask(document, _mm512_set1_epi32(static_cast<int>(row)));
      const __m512 score = _mm512_load_ps(at + r * kTile);
      _mm512_store_ps(at + r * kTile,
                      _mm512_mask_mov_ps(_mm512_set1_ps(kMaskedScore), visible, score));
    }
  }
}

// What the terms make of the scores of 32 keys and 32 queries in 2 x 2 tiles, the first query
// `distance` positions behind the first key; and of the gradients d_p of the probabilities, if it
// has data.
inline void ChangePiece(const HeadTerms& terms, float scale, int64_t distance, const Sums& scores,
                        const Sums& d_p, const float* delta) {
  for (int64_t tile = 0; tile < 2; ++tile) {
    for (int64_t column = 0; column < 2; ++column) {
      ChangeScores(terms, scale,
                   {.scores = scores.At(tile, column),
                    .stride = kTile,
                    .keys = kTile,
                    .distance = distance + (column - tile) * kTile},
                   {.d_p = d_p.data == nullptr ? nullptr : d_p.At(tile, column),
                    .delta = delta == nullptr ? nullptr : delta + column * kTile});
    }
  }
}

// The 16 queries of a column of tiles that keep a key.
inline __mmask16 KeptQueries(const KeptPairs& kept, int64_t key, int64_t column) {
  return static_cast<__mmask16>(kept.of_key[key] >> (column * kTile));
}

// Stores transposed tiles [width, 32] as 32 rows, or adds them; row r is multiplied by factor[r].
inline void StoreTransposed(const HeadRows& out, const Sums& tiles, int64_t first, int64_t end,
                            int64_t width, const float* factor, bool add) {
  for (int64_t column = 0; column < 2; ++column) {
    const int64_t count = std::min(kTile, end - first - column * kTile);
    for (int64_t tile = 0; tile * kTile < width; ++tile) {
      alignas(64) float rows[kSumElements];
      TransposeTile(tiles.At(tile, column), rows);
      for (int64_t i = 0; i < count; ++i) {
        const __m512 by = _mm512_set1_ps(factor[column * kTile + i]);
        const int64_t row = first + column * kTile + i;
        __m512 values = _mm512_mul_ps(_mm512_load_ps(rows + i * kTile), by);
        if (add) values = _mm512_add_ps(values, LoadColumns(out, row, tile * kTile, width));
        StoreColumns(out, row, tile * kTile, width, values);
      }
    }
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu
HWY_POP_ATTRIBUTES
