// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/sampler.h"

#include <algorithm>
#include <cmath>

namespace terrace {

int32_t Sampler::Next(std::span<const float> logits) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    candidates_.emplace_back(logits[i], static_cast<int32_t>(i));
  const auto likelier = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  const size_t wanted = options_.temperature <= 0 ? 1
                        : options_.top_k == 0     ? logits.size()
                                                  : options_.top_k;
  const size_t kept = std::min(wanted, candidates_.size());
  std::partial_sort(candidates_.begin(), candidates_.begin() + kept, candidates_.end(), likelier);
  if (kept == 1) return candidates_.front().second;
  double total = 0;
  for (size_t i = 0; i < kept; ++i)
    total += std::exp((candidates_[i].first - candidates_[0].first) / options_.temperature);
  // 53 bits of the generator: the same on every standard library, unlike its distributions.
  double rest = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (size_t i = 0; i < kept; ++i) {
    rest -= std::exp((candidates_[i].first - candidates_[0].first) / options_.temperature);
    if (rest < 0) return candidates_[i].second;
  }
  return candidates_[kept - 1].second;
}

}  // namespace terrace
