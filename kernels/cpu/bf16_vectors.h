// Products of tiles by AVX-512 BF16, for CPUs without AMX: an instruction adds two products of bf16
// to each of sixteen f32 sums.
//
// Tiles are those of AMX (amx.h): one of A is 16 rows of 16 pairs of the summed dimension, one of B
// 16 such pairs, each of 16 columns. Like AMX the instruction takes subnormal operands and results
// for zero.
//
// REQUIRES: HasBF16Vectors(). Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx.h"

namespace terrace::kernels::cpu {

inline constexpr int64_t kPairRows = 8;  // beside two vectors of columns: sixteen sums in registers
inline constexpr int64_t kTileLine = 32;  // bf16 elements of a tile's row

// What is multiplied, over `depth` tiles of the summed dimension: from a row of a tile of A on, by
// two tiles of B side by side, at multiples of 64 bytes. Elements from one tile to the next of the
// same rows or columns.
struct PairFactors {
  const uint16_t* a = nullptr;
  const uint16_t* left = nullptr;
  const uint16_t* right = nullptr;
  int64_t a_next = 0, b_next = 0;
  int64_t depth = 0;
};
// Rows of 16 sums, `stride` floats from one to the next.
struct PairSums {
  float* left = nullptr;
  float* right = nullptr;
  int64_t stride = 0;
};

TERRACE_AMX inline __m512bh LoadPairs(const uint16_t* row) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(row));
}
TERRACE_AMX inline __m512bh RepeatPair(const uint16_t* pair) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

// kPairRows rows of sums are written, or added to.
template <bool kAccumulate>
TERRACE_AMX inline void SumPairs(PairFactors f, const PairSums& sums) {
  constexpr int64_t kTilePairs = 16;
  __m512 sum[kPairRows][2];
  for (int64_t r = 0; r < kPairRows; ++r) {
    sum[r][0] = kAccumulate ? _mm512_loadu_ps(sums.left + r * sums.stride) : _mm512_setzero_ps();
    sum[r][1] = kAccumulate ? _mm512_loadu_ps(sums.right + r * sums.stride) : _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < f.depth; ++k) {
    for (int64_t pair = 0; pair < kTilePairs; ++pair) {
      const __m512bh left = LoadPairs(f.left + pair * kTileLine);
      const __m512bh right = LoadPairs(f.right + pair * kTileLine);
      for (int64_t r = 0; r < kPairRows; ++r) {
        const __m512bh factor = RepeatPair(f.a + r * kTileLine + 2 * pair);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], factor, left);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], factor, right);
      }
    }
    f.a += f.a_next;
    f.left += f.b_next;
    f.right += f.b_next;
  }
  for (int64_t r = 0; r < kPairRows; ++r) {
    _mm512_storeu_ps(sums.left + r * sums.stride, sum[r][0]);
    _mm512_storeu_ps(sums.right + r * sums.stride, sum[r][1]);
  }
}

}  // namespace terrace::kernels::cpu
