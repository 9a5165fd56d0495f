// What terms do to one score and to one element of the softmax (ScoreTerms in kernels/op.h), in
// double and from the papers' definitions. Internal to tests/conformance. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/op.h"
#include "kernels/philox.h"
#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {

// As the authors of ALiBi compute it (get_slopes of Press et al. 2022).
inline double AlibiSlopeRef(int64_t heads, int64_t head) {
  const double whole = std::floor(std::log2(static_cast<double>(heads)));
  const auto power = static_cast<int64_t>(std::exp2(whole));
  if (head >= power) return AlibiSlopeRef(2 * power, 2 * (head - power));
  const double start = std::exp2(-std::exp2(-(whole - 3)));
  return std::pow(start, static_cast<double>(head + 1));
}

struct ScoreRef {
  double score;
  double slope;  // of the score by the one before
};
// `head` is one of the rank's own.
inline ScoreRef ChangedScoreRef(const ScoreTerms& terms, int64_t head, double score,
                                int64_t distance) {
  double slope = 1;
  if (terms.softcap != 0) {
    const double tanh = std::tanh(score / static_cast<double>(terms.softcap));
    score = tanh * static_cast<double>(terms.softcap);
    slope = 1 - tanh * tanh;
  }
  if (terms.alibi_heads != 0) {
    score -=
        AlibiSlopeRef(terms.alibi_heads, terms.first_head + head) * static_cast<double>(distance);
  }
  return {score, slope};
}

// The number in the run of the batch's sequence `b`, which its first place says.
inline double NumberRef(const Values& places, int64_t b, int64_t batch) {
  if (places.empty()) return 0;
  const auto rows = static_cast<int64_t>(places.size()) / 2;
  return places[2 * (b * (rows / batch)) + 1];
}

// What an element of the softmax is multiplied by: 0, or 1 / the share that stays.
inline double KeptRef(const ScoreTerms& terms, int64_t head, double sequence, int64_t query,
                      int64_t key) {
  if (terms.dropout == 0) return 1;
  const double below = std::round(static_cast<double>(terms.dropout) * 65536);
  const PhiloxBlock of_site =
      Philox({{terms.site, 0, 0x73636f72, 0}},
             {{static_cast<uint32_t>(terms.seed), static_cast<uint32_t>(terms.seed >> 32)}});
  const PhiloxBlock block =
      Philox({{static_cast<uint32_t>(query / 8), static_cast<uint32_t>(key),
               static_cast<uint32_t>(sequence), static_cast<uint32_t>(terms.first_head + head)}},
             {{of_site.word[0], of_site.word[1]}});
  const uint32_t word = block.word[query % 8 / 2];
  const uint32_t bits = query % 2 == 0 ? word & 0xffff : word >> 16;
  return bits < below ? 0 : 1 / (1 - below / 65536);
}

}  // namespace terrace::kernels::conformance
