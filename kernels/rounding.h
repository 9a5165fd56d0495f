// Stochastic rounding of f32 to bf16: what every backend means by it, and which random bits an
// element gets.
//
// A number between two of bf16 becomes the one or the other, with the probabilities that make the
// mean the number itself (Gupta et al. 2015, arXiv 1502.02551; Zamirai et al. 2020, arXiv
// 2010.06192): 16 random bits are added to the 16 that bf16 has no room for, and the carry decides.
// The probabilities are exact: multiples of 2^-16, as the numbers are. What bf16 has stays as it
// is. Beyond bf16's largest number the upper neighbour is infinity, as of every rounding.
//
// The bits are those of (seed, tensor, step, element of the tensor) and of nothing else: whatever
// the layout, whoever holds the element rounds it alike. Element e of a tensor takes half e mod 8
// of the block of Philox with counter {e / 8, step, 0} under the tensor's key.
//
// Compiles for the device too. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/philox.h"

namespace terrace::kernels {

// The elements of one tensor in an operand, as a matrix: those of row r of the part lie from
// position begin + r * row_stride of the operand on, and are the tensor's from element
// first + r * tensor_stride on. Positions outside [0, elements of the operand) are not in it.
struct RoundingPart {
  int64_t begin = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // at most row_stride
  int64_t row_stride = 1;
  int64_t first = 0;
  int64_t tensor_stride = 0;
  PhiloxKey key = {};
  bool operator==(const RoundingPart&) const = default;
};
// Parts of one operand: what products that share their input lie together for, times the matrices
// of a layer. Positions that are in no part are padding, zero before and after: cut off.
inline constexpr int kMaxRoundingParts = 16;

inline constexpr int kRoundsABlock = 8;  // elements that one block has bits for

// `tensor`: a hash of its name.
TERRACE_PHILOX_FUNCTION PhiloxKey RoundingKey(uint64_t seed, uint64_t tensor) {
  constexpr uint32_t kPurpose = 0x726e6421;  // other blocks than those of initial weights
  const PhiloxBlock block =
      Philox({{static_cast<uint32_t>(tensor), static_cast<uint32_t>(tensor >> 32), kPurpose, 0}},
             {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}});
  return {{block.word[0], block.word[1]}};
}

// The bits of elements 8 `block` to 8 `block` + 7.
TERRACE_PHILOX_FUNCTION PhiloxBlock RoundingBlock(PhiloxKey key, uint32_t step, int64_t block) {
  const auto number = static_cast<uint64_t>(block);
  return Philox({{static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), step, 0}},
                key);
}
TERRACE_PHILOX_FUNCTION uint32_t RoundingBitsOf(const PhiloxBlock& block, int element) {
  return block.word[element / 2] >> (element % 2 * 16) & 0xffffu;
}
TERRACE_PHILOX_FUNCTION uint32_t RoundingBits(PhiloxKey key, uint32_t step, int64_t element) {
  return RoundingBitsOf(RoundingBlock(key, step, element / kRoundsABlock),
                        static_cast<int>(element % kRoundsABlock));
}

// The upper half of the result's bits is the bf16; the rest is zero. A NaN stays one.
TERRACE_PHILOX_FUNCTION float RoundStochastically(float value, uint32_t bits16) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  bits = (is_nan ? bits | 0x400000u : bits + bits16) & 0xffff0000u;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// The element of the tensor at `position` of the operand, and how many follow it in its row there;
// no element where the part does not hold the position.
struct RoundingPlace {
  int64_t element = -1;
  int64_t count = 0;
};
TERRACE_PHILOX_FUNCTION RoundingPlace PlaceIn(const RoundingPart& part, int64_t position) {
  const int64_t at = position - part.begin;
  if (at < 0) return {};
  const int64_t row = part.rows == 1 ? 0 : at / part.row_stride;
  const int64_t column = at - row * part.row_stride;
  if (row >= part.rows || column >= part.columns) return {};
  return {part.first + row * part.tensor_stride + column, part.columns - column};
}

}  // namespace terrace::kernels
