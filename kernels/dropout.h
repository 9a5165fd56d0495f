// Dropout (Srivastava et al. 2014): what every backend means by it, and which random bits decide
// over an element.
//
// The bits are those of (seed, site, number of the sequence in the run, position of the token in
// it, column) and of nothing else. So the backward pass and a recomputed pass drop what the forward
// pass dropped, a job that goes on drops what it would have dropped, and no layout changes an
// element. Column c takes half c mod 8 of the block of Philox with counter
// {c / 8, position, sequence, 0} under the site's key.
//
// Of the softmax of scores (ScoreTerms in op.h) the bits are those of (seed, site, number of the
// sequence, position of the query, position of the key, head): the query at position q takes half q
// mod 8 of the block with counter {q / 8, position of the key, sequence, head} under a key that is
// the site's too.
//
// An element is dropped when its 16 bits are below the probability times 2^16, rounded to the
// nearest; what stays is divided by the share that stays, exactly, so that the mean is the same.
//
// Compiles for the device too. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/philox.h"
#include "kernels/rounding.h"

namespace terrace::kernels {

struct DropoutRule {
  PhiloxKey key;
  uint32_t dropped_below = 0;  // bits of an element, 0 to 2^16 - 1
  float scale = 1;             // of what stays
};

// Purposes have other blocks than each other, and than those of weights and rounding.
inline constexpr uint32_t kDropoutOfValues = 0x64726f70, kDropoutOfScores = 0x73636f72;

inline DropoutRule DropoutRuleOf(float probability, uint64_t seed, uint32_t site,
                                 uint32_t purpose) {
  constexpr double kAll = 65536;
  const PhiloxBlock block = Philox(
      {{site, 0, purpose, 0}}, {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}});
  // Not 2^16 itself, of which nothing would stay.
  const auto below =
      static_cast<uint32_t>(probability * kAll + 0.5 < kAll ? probability * kAll + 0.5 : kAll - 1);
  return {.key = {{block.word[0], block.word[1]}},
          .dropped_below = below,
          .scale = static_cast<float>(kAll / (kAll - below))};
}
inline DropoutRule RuleOf(const DropoutAttrs& attrs) {
  return DropoutRuleOf(attrs.probability, attrs.seed, attrs.site, kDropoutOfValues);
}
inline DropoutRule RuleOf(const ScoreTerms& terms) {
  return DropoutRuleOf(terms.dropout, terms.seed, terms.site, kDropoutOfScores);
}

// The bits of columns 8 `block` to 8 `block` + 7 of a token; RoundingBitsOf has those of one.
TERRACE_PHILOX_FUNCTION PhiloxBlock DropoutBlock(PhiloxKey key, uint32_t sequence,
                                                 uint32_t position, uint32_t block) {
  return Philox({{block, position, sequence, 0}}, key);
}

// The bits of the queries at positions 8 `block` to 8 `block` + 7, of their softmax's element of
// the key at `key_position`.
TERRACE_PHILOX_FUNCTION PhiloxBlock ScoreDropoutBlock(PhiloxKey key, uint32_t head,
                                                      uint32_t sequence, uint32_t key_position,
                                                      uint32_t block) {
  return Philox({{block, key_position, sequence, head}}, key);
}

}  // namespace terrace::kernels
