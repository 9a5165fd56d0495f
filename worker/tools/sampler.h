// Picks the next token from logits, with the words and the order of transformers' generate():
// repetition penalty, temperature, top-k, top-p, min-p, then a draw; OpenAI's bias comes before and
// its penalties behind the repetition's. The same seed gives the same text.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace terrace {

struct SamplerOptions {
  double temperature = 0.8;  // 0: the likeliest token
  int64_t top_k = 0;         // so many likeliest tokens stay; 0: all
  // The likeliest tokens stay whose probabilities together reach this (Holtzman et al. 2019, arXiv
  // 1904.09751); 1: all.
  double top_p = 1;
  // Tokens stay that have at least this part of the likeliest one's probability (Nguyen et al.
  // 2024, arXiv 2407.01082); 0: all.
  double min_p = 0;
  // Logits of tokens that the text already has are divided by this where they are positive, else
  // multiplied (Keskar et al. 2019, arXiv 1909.05858); 1: they stay.
  double repetition_penalty = 1;
  // Logits of tokens that were added to the prompt lose the first once, the second each time.
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<int32_t, double>> logit_bias;  // token and what its logit gains
  uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}
  // `text`: the tokens so far, `prompt_tokens` of which were given. Of equal logits the lower id
  // wins. REQUIRES: `logits` is not empty.
  int32_t Next(std::span<const float> logits, std::span<const int32_t> text = {},
               size_t prompt_tokens = 0);

 private:
  struct Candidate {
    double logit = 0;
    int32_t id = 0;
    double weight = 0;  // of the draw
  };
  static bool Likelier(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }
  void PenaliseRepetition(std::span<const int32_t> text);
  void PenaliseAdded(std::span<const int32_t> added);
  void KeepTopK();
  void KeepTopP();
  int32_t Draw();

  const SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;  // kept to save allocations
};

}  // namespace terrace
