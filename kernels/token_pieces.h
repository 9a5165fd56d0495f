// The runs of consecutive positions that a rank of a context holds of each sequence, and how many
// pairs of a query and a key attention looks at between two such runs.
//
// Read by op_cost.cc and attention_workspace.cc (how much) and by the attention kernels (where).
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kernels/op.h"

namespace terrace::kernels {

struct TokenPiece {
  int64_t row = 0;       // of its first token among the rank's tokens of a sequence
  int64_t position = 0;  // of its first token in the whole sequence
};

struct TokenPieces {
  std::array<TokenPiece, 2> pieces;
  int count = 1;
  int64_t length = 0;  // of each
};

// What the rank `index` of the share holds. One rank alone holds one piece, in zig-zag too.
inline TokenPieces PiecesOf(const TokenShare& share, int64_t index, int64_t sequence) {
  if (!share.zigzag || share.ranks == 1) {
    return {.pieces = {{{0, index * sequence}}}, .count = 1, .length = sequence};
  }
  const int64_t length = sequence / 2;
  const TokenPiece last = {length, (2 * share.ranks - 1 - index) * length};
  return {.pieces = {{{0, index * length}, last}}, .count = 2, .length = length};
}

inline TokenPieces QueryPieces(const AttentionBlockAttrs& attrs) {
  return PiecesOf(attrs.context, attrs.context.index, attrs.sequence);
}

inline TokenPieces KeyPieces(const AttentionBlockAttrs& attrs) {
  const TokenShare& share = attrs.context;
  return PiecesOf(share, (share.index - attrs.step + share.ranks) % share.ranks, attrs.sequence);
}

// Pairs (i, j) of [0, length) x [0, length) with i - j <= most.
inline int64_t PairsUpTo(int64_t length, int64_t most) {
  if (most <= -length) return 0;
  if (most >= length - 1) return length * length;
  if (most < 0) return (length + most) * (length + most + 1) / 2;
  return length * length - (length - 1 - most) * (length - most) / 2;
}

// Pairs that see each other when queries start `offset` positions behind keys, both being `length`
// long: the key is no later than the query, and within the window if there is one (0: none).
inline int64_t VisiblePairs(int64_t length, int64_t offset, int64_t window) {
  const int64_t farthest = window == 0 ? length : std::min(window - 1 - offset, length);
  return std::max<int64_t>(0, PairsUpTo(length, farthest) - PairsUpTo(length, -offset - 1));
}

// The operand that says where documents start (kAttention); null where there is none.
inline const int32_t* StartsOf(std::span<const TensorView> operands, size_t index) {
  const bool absent = index >= operands.size() || operands[index].absent();
  return absent ? nullptr : operands[index].as<const int32_t>();
}

}  // namespace terrace::kernels
