// What attention does to scores between their scale and the mask (ScoreTerms in op.h): what every
// backend means by it.
//
// A score s becomes softcap * tanh(s / softcap), of which the head's slope times the distance from
// the key to the query is subtracted. The gradient by s is that by the result times
// 1 - tanh^2(s / softcap).
//
// Compiles for the device too. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/op.h"
#include "kernels/philox.h"
#include "kernels/tensor_view.h"

namespace terrace::kernels {

inline bool HasTerms(const ScoreTerms& terms) {
  return terms.softcap != 0 || terms.alibi_heads != 0 || terms.dropout != 0;
}

// Of one head; 0: the term is not there.
struct HeadTerms {
  float softcap = 0;
  float slope = 0;
};
TERRACE_PHILOX_FUNCTION bool Changes(const HeadTerms& terms) {
  return terms.softcap != 0 || terms.slope != 0;
}

// Press et al. 2022 (ALiBi, arXiv 2108.12409, section 3): 2^(-8/n), 2^(-16/n), ... for n heads
// where n is a power of two. Heads beyond the largest power of two have every second slope of twice
// as many heads, as in the authors' code.
TERRACE_PHILOX_FUNCTION float AlibiSlope(int64_t heads, int64_t head) {
  int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  const int64_t number = head < n ? head + 1 : 2 * (head - n) + 1;
  const int64_t of = head < n ? n : 2 * n;
  return exp2f(-8.0f * static_cast<float>(number) / static_cast<float>(of));
}

// Of the rank's own head `head`.
TERRACE_PHILOX_FUNCTION HeadTerms TermsOfHead(const ScoreTerms& terms, int64_t head) {
  return {terms.softcap,
          terms.alibi_heads == 0 ? 0.0f : AlibiSlope(terms.alibi_heads, terms.first_head + head)};
}

// The sequences that rows belong to, which `places` says (kAttention): of as many tokens of each
// sequence, in order. Null without dropout.
struct SequenceNumbers {
  const uint32_t* places = nullptr;
  int64_t rows = 0;  // of each sequence
};
TERRACE_PHILOX_FUNCTION uint32_t NumberOf(const SequenceNumbers& numbers, int64_t sequence) {
  return numbers.places[2 * sequence * numbers.rows + 1];
}
inline SequenceNumbers NumbersOf(std::span<const TensorView> operands, size_t index,
                                 int64_t batch) {
  if (index >= operands.size() || operands[index].absent()) return {};
  return {operands[index].as<const uint32_t>(), operands[index].rows() / batch};
}

}  // namespace terrace::kernels
