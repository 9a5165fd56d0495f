// Picks the next token from logits: softmax with a temperature over the k likeliest. The same seed
// gives the same text.
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
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}
  // Of equal logits the lower id wins. REQUIRES: `logits` is not empty.
  int32_t Next(std::span<const float> logits);

 private:
  const SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<std::pair<float, int32_t>> candidates_;  // likeliest first; kept to save allocations
};

}  // namespace terrace
