// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace terrace {

int32_t Sampler::Next(std::span<const float> logits, std::span<const int32_t> text,
                      size_t prompt_tokens) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    candidates_.push_back({.logit = logits[i], .id = static_cast<int32_t>(i)});
  for (const auto& [id, bias] : options_.logit_bias) {
    if (id >= 0 && id < std::ssize(candidates_)) candidates_[id].logit += bias;
  }
  if (options_.repetition_penalty != 1) PenaliseRepetition(text);
  if (options_.presence_penalty != 0 || options_.frequency_penalty != 0)
    PenaliseAdded(text.subspan(std::min(prompt_tokens, text.size())));
  const auto likeliest = std::min_element(candidates_.begin(), candidates_.end(), Likelier);
  if (options_.temperature <= 0) return likeliest->id;
  const double largest = likeliest->logit;
  KeepTopK();
  for (Candidate& candidate : candidates_)
    candidate.weight = std::exp((candidate.logit - largest) / options_.temperature);
  if (options_.top_p < 1) KeepTopP();
  if (options_.min_p > 0)
    std::erase_if(candidates_, [&](const Candidate& candidate) {
      return candidate.weight < options_.min_p;  // the largest weight is 1
    });
  return Draw();
}

// Once for each token, however often the text has it.
void Sampler::PenaliseRepetition(std::span<const int32_t> text) {
  for (const int32_t id : text) {
    if (id < 0 || id >= std::ssize(candidates_)) continue;
    Candidate& candidate = candidates_[id];
    if (candidate.weight != 0) continue;
    candidate.weight = 1;
    candidate.logit = candidate.logit > 0 ? candidate.logit / options_.repetition_penalty
                                          : candidate.logit * options_.repetition_penalty;
  }
}

void Sampler::PenaliseAdded(std::span<const int32_t> added) {
  constexpr double kSeen = 2;
  for (const int32_t id : added) {
    if (id < 0 || id >= std::ssize(candidates_)) continue;
    Candidate& candidate = candidates_[id];
    candidate.logit -= options_.frequency_penalty;
    if (candidate.weight != kSeen) candidate.logit -= options_.presence_penalty;
    candidate.weight = kSeen;
  }
}

// In order, so that the draw does not depend on how the library selects them.
void Sampler::KeepTopK() {
  const auto count = static_cast<size_t>(options_.top_k);
  if (count == 0 || count >= candidates_.size()) return;
  const auto end = candidates_.begin() + options_.top_k;
  std::partial_sort(candidates_.begin(), end, candidates_.end(), Likelier);
  candidates_.resize(count);
}

// A heap gives the likeliest one after the other: sorting a whole vocabulary would take longer than
// a small model's pass.
void Sampler::KeepTopP() {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return Likelier(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  double sum = 0;
  auto end = candidates_.end();
  do {  // one stays, whatever is asked for
    std::pop_heap(candidates_.begin(), end, less_likely);
    sum += (--end)->weight;
  } while (end != candidates_.begin() && sum < options_.top_p * total);
  candidates_.erase(candidates_.begin(), end);
}

int32_t Sampler::Draw() {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  // 53 bits of the generator: the same on every standard library, unlike its distributions.
  double rest = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (const Candidate& candidate : candidates_) {
    rest -= candidate.weight;
    if (rest < 0) return candidate.id;
  }
  return candidates_.back().id;
}

}  // namespace terrace
