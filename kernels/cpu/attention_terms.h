// What the attention engines do to scores and probabilities where an op has terms (ScoreTerms in
// op.h): passes over pieces of them as the engines hold them, which cost nothing where there are
// none.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/attention_workspace.h"
#include "kernels/dropout.h"
#include "kernels/score_terms.h"

namespace terrace::kernels::cpu {

inline constexpr int64_t kStripQueries = 16;

// 16 queries by some keys: row r, of key r, lies r * stride elements after `scores`.
struct ScoreStrip {
  float* scores = nullptr;
  int64_t stride = 0;
  int64_t keys = 0;
  int64_t distance = 0;  // from the first key to the first query
};
// In the same rows, and by query.
struct GradientStrip {
  float* d_p = nullptr;          // the gradients by the probabilities
  const float* delta = nullptr;  // the sums of the probabilities times these
};

// Scores before the factor `scale` are replaced by those that the terms make, before it too. With
// gradients d_p becomes what gives those by the scores as they were: p (d_p - delta).
void ChangeScores(const HeadTerms& terms, float scale, const ScoreStrip& strip,
                  const GradientStrip& gradient);
// The scores of one query and `count` keys; `distance` is that from the first of them.
void ChangeRow(const HeadTerms& terms, float scale, int64_t distance, int64_t count, float* scores);

// Which of 32 queries by up to 128 keys are not dropped: bit i of word r says that query i keeps
// key r.
struct KeptPairs {
  uint32_t of_key[kAttentionKeyBlock];
};
// Where pieces lie that elements are dropped of.
struct DropoutPlace {
  uint32_t sequence = 0;       // its number in the run
  uint32_t head = 0;           // over all ranks
  int64_t query = 0, key = 0;  // positions of the first ones
};
void FindKept(const DropoutRule& rule, const DropoutPlace& place, int64_t keys, KeptPairs* kept);
// Zeros what is dropped of a strip, whose first query and key are those of these numbers, and
// scales what stays.
struct DropStrip {
  float* rows = nullptr;
  int64_t stride = 0;
  int64_t keys = 0;
  int64_t first_query = 0, first_key = 0;
};
void DropPairs(const KeptPairs& kept, float scale, const DropStrip& strip);

}  // namespace terrace::kernels::cpu
