// What terms do to the scores of attention and to the elements of its softmax
// (kernels/score_terms.h, kernels/dropout.h): passes over what a thread holds of a tile, which
// kernels leave out where an op has no terms.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {

// A scaled score as the terms make it, and what its gradient is multiplied by.
struct ChangedScore {
  float score, slope;
};
__device__ inline ChangedScore ChangeScore(const HeadTerms& terms, float score, int64_t distance) {
  float slope = 1;
  if (terms.softcap != 0) {
    const float tanh = tanhf(score / terms.softcap);
    score = terms.softcap * tanh;
    slope = 1 - tanh * tanh;
  }
  return {score - terms.slope * static_cast<float>(distance), slope};
}

// A head of a sequence whose softmax elements are dropped of.
struct DropoutHead {
  PhiloxKey key;
  uint32_t below, sequence, head;
  float scale;
  int64_t query, key_position;  // of the first ones of the pieces
};
__device__ inline DropoutHead DropoutOf(const AttentionShape& s, int64_t sequence, int64_t head) {
  return {s.dropout.key,
          s.dropout.dropped_below,
          NumberOf(s.numbers, sequence),
          static_cast<uint32_t>(s.terms.first_head + head),
          s.dropout.scale,
          s.key_position + s.offset,
          s.key_position};
}
__device__ inline PhiloxBlock BitsAt(const DropoutHead& h, int64_t query_block, int64_t key) {
  return ScoreDropoutBlock(h.key, h.head, h.sequence, static_cast<uint32_t>(h.key_position + key),
                           static_cast<uint32_t>(query_block));
}
// What the element of a query and a key of the pieces is multiplied by.
__device__ inline float KeptScale(const DropoutHead& h, int64_t query, int64_t key) {
  const int64_t position = h.query + query;
  const PhiloxBlock bits = BitsAt(h, position / kRoundsABlock, key);
  return RoundingBitsOf(bits, static_cast<int>(position % kRoundsABlock)) < h.below ? 0.0f
                                                                                    : h.scale;
}
// Bit i: the query i of the block keeps the key.
__device__ inline uint32_t KeptOfBlock(const DropoutHead& h, int64_t query_block, int64_t key) {
  const PhiloxBlock bits = BitsAt(h, query_block, key);
  uint32_t kept = 0;
#pragma unroll
  for (int i = 0; i < kRoundsABlock; ++i)
    kept |= (RoundingBitsOf(bits, i) < h.below ? 0u : 1u) << i;
  return kept;
}

// The rest is of fragments (warp.cuh): element e of tile n is of row g + 8 (e / 2) and of column
// 8 n + 2 t + e % 2, and bit 4 n + e of what follows is that of the element.

// Rows are 16 queries from `first` on, columns 64 keys from `key_tile` on. Where blocks of bits are
// tiles of rows, the lanes of a column make one for a tile each and exchange them.
__device__ inline uint32_t KeptOfQueries(const DropoutHead& h, int64_t first, int64_t key_tile) {
  constexpr int kTiles = 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int64_t position = h.query + first;
  uint32_t kept = 0;
  if (position % kRoundsABlock == 0) {
    uint32_t own = 0;
    for (int e = 0; e < 4; ++e) {
      const int64_t key = key_tile + 8 * g + 2 * t + e % 2;
      own |= KeptOfBlock(h, position / kRoundsABlock + e / 2, key) << (8 * e);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint32_t of_tile = __shfl_sync(0xffffffffu, own, 4 * n + t);
#pragma unroll
      for (int e = 0; e < 4; ++e) kept |= (of_tile >> (8 * e + g) & 1u) << (4 * n + e);
    }
    return kept;
  }
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int64_t query = first + g + 8 * (i % 4 / 2), key = key_tile + i / 4 * 8 + 2 * t + i % 2;
    kept |= (KeptScale(h, query, key) == 0 ? 0u : 1u) << i;
  }
  return kept;
}

// Rows are 16 keys from `first` on, columns 8 kTiles queries from `query_tile` on: the lanes of a
// row make the blocks of its columns together.
template <int kTiles>
__device__ uint32_t KeptOfKeys(const DropoutHead& h, int64_t first, int64_t query_tile) {
  constexpr int kEach = kTiles * 2 / 4;  // blocks of a lane
  static_assert(kTiles % 2 == 0 && kEach <= 4);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int64_t position = h.query + query_tile;
  uint32_t kept = 0;
  if (position % kRoundsABlock == 0) {
    uint32_t own = 0;
    for (int i = 0; i < kEach; ++i) {
      const int block = t * kEach + i;
      const int64_t key = first + g + 8 * (block % 2);
      own |= KeptOfBlock(h, position / kRoundsABlock + block / 2, key) << (8 * i);
    }
#pragma unroll
    for (int block = 0; block < 2 * kTiles; ++block) {
      const uint32_t of_lane = __shfl_sync(0xffffffffu, own, 4 * g + block / kEach);
      const uint32_t pair = of_lane >> (8 * (block % kEach) + 2 * t) & 3u;
      kept |= pair << (4 * (block / 2) + 2 * (block % 2));
    }
    return kept;
  }
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int64_t key = first + g + 8 * (i % 4 / 2), query = query_tile + i / 4 * 8 + 2 * t + i % 2;
    kept |= (KeptScale(h, query, key) == 0 ? 0u : 1u) << i;
  }
  return kept;
}

template <int kTiles>
__device__ void DropFragments(uint32_t kept, float scale, float (*elements)[4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      elements[n][e] = (kept >> (4 * n + e) & 1u) == 0 ? 0.0f : elements[n][e] * scale;
    }
  }
}

// Scores before their scale become those that the terms make, before it too; products dp with the
// output's gradient become what gives the gradients of the scores as they were. `distance` is that
// from the fragment's first row and column, `sign` 1 where rows are queries and -1 where they are
// keys; delta(n, e): of the element's query.
template <int kTiles, typename Delta>
__device__ void ChangeFragments(const HeadTerms& terms, float scale, int64_t distance, int sign,
                                const Delta& delta, float (*scores)[4], float (*dp)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const float inverse = 1.0f / scale;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t further = sign * (g + 8 * (e / 2) - (n * 8 + 2 * t + e % 2));
      const ChangedScore changed = ChangeScore(terms, scores[n][e] * scale, distance + further);
      scores[n][e] = changed.score * inverse;
      if (dp != nullptr) dp[n][e] = delta(n, e) + (dp[n][e] - delta(n, e)) * changed.slope;
    }
  }
}

}  // namespace terrace::kernels::cuda
