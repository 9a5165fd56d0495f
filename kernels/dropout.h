// Dropout (Srivastava et al. 2014): what every backend means by it, and which random bits decide
// over an element.
//
// The bits are those of (seed, site, number of the sequence in the run, position of the token in
// it, column) and of nothing else. So the backward pass and a recomputed pass drop what the forward
// pass dropped, a job that goes on drops what it would have dropped, and no layout changes an
// element. Column c takes half c mod 8 of the block of Philox with counter
// {c / 8, position, sequence, 0} under the site's key.
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

inline DropoutRule RuleOf(const DropoutAttrs& attrs) {
  constexpr uint32_t kPurpose = 0x64726f70;  // other blocks than those of weights and rounding
  constexpr double kAll = 65536;
  const PhiloxBlock block =
      Philox({{attrs.site, 0, kPurpose, 0}},
             {{static_cast<uint32_t>(attrs.seed), static_cast<uint32_t>(attrs.seed >> 32)}});
  // Not 2^16 itself, of which nothing would stay.
  const auto below = static_cast<uint32_t>(
      attrs.probability * kAll + 0.5 < kAll ? attrs.probability * kAll + 0.5 : kAll - 1);
  return {.key = {{block.word[0], block.word[1]}},
          .dropped_below = below,
          .scale = static_cast<float>(kAll / (kAll - below))};
}

// The bits of columns 8 `block` to 8 `block` + 7 of a token; RoundingBitsOf has those of one.
TERRACE_PHILOX_FUNCTION PhiloxBlock DropoutBlock(PhiloxKey key, uint32_t sequence,
                                                 uint32_t position, uint32_t block) {
  return Philox({{block, position, sequence, 0}}, key);
}

}  // namespace terrace::kernels
