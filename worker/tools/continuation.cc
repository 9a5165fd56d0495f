// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/continuation.h"

#include <algorithm>
#include <utility>

namespace terrace {
namespace {

// How many bytes of `text` are whole UTF-8 characters: what can be shown already.
size_t WholeCharacters(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(text.size(), 4); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return text.size();
    if (byte < 0xc0) continue;
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

// Where the first of `stops` begins in `text`; its size where none does.
size_t FindStop(std::string_view text, const std::vector<std::string>& stops) {
  size_t first = text.size();
  for (const std::string& stop : stops) first = std::min(first, text.find(stop));
  return first;
}

// How many bytes at the end of `text` may be the beginning of a stop.
size_t PartOfStop(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t part = std::min(stop.size() - 1, text.size()); part > longest; --part) {
      if (text.ends_with(std::string_view(stop).substr(0, part))) longest = part;
    }
  }
  return longest;
}

// Far apart, so that a continuation of one seed is none of the next seed's.
SamplerOptions SamplerOf(SamplerOptions options, int64_t index) {
  constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
  options.seed += static_cast<uint64_t>(index) * kGoldenRatio;
  return options;
}

}  // namespace

Continuation::Continuation(const ContinuationOptions& options, const Tokenizer& tokenizer,
                           std::vector<int32_t> prompt, int64_t index)
    : options_(options),
      tokenizer_(tokenizer),
      sampler_(SamplerOf(options.sampler, index)),
      ids_(std::move(prompt)),
      prompt_tokens_(ids_.size()),
      prompt_text_(tokenizer.Decode(ids_)) {
  if (options.tokens == 0) finish_ = "length";
}

bool Continuation::Add(std::span<const float> logits) {
  const int32_t id = sampler_.Next(logits, ids_, prompt_tokens_);
  const std::vector<int32_t>& ends = tokenizer_.special_tokens().stops;
  if (std::find(ends.begin(), ends.end(), id) != ends.end()) {
    finish_ = "stop";
    return false;
  }
  ids_.push_back(id);
  text_ = Made();
  if (const size_t stop = FindStop(text_, options_.stops); stop < text_.size()) {
    text_.resize(stop);
    finish_ = "stop";
  } else if (new_tokens() >= options_.tokens) {
    finish_ = "length";
  }
  return true;
}

std::string_view Continuation::Shown() {
  const size_t whole = done() ? text_.size() : WholeCharacters(text_);
  const size_t held = done() ? 0 : PartOfStop(text_, options_.stops);
  const size_t end = std::min(whole, text_.size() - held);
  if (end <= shown_) return {};
  return std::string_view(text_).substr(std::exchange(shown_, end), end - shown_);
}

// What the new tokens add to the prompt: alone, the first of them would lose its space.
std::string Continuation::Made() const {
  const std::string all = tokenizer_.Decode(ids_);
  if (all.starts_with(prompt_text_)) return all.substr(prompt_text_.size());
  const auto begin = ids_.begin() + static_cast<int64_t>(prompt_tokens_);
  return tokenizer_.Decode(std::vector<int32_t>(begin, ids_.end()));
}

}  // namespace terrace
