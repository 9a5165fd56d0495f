// SPDX-License-Identifier: Apache-2.0
#include "worker/data/counted_tokens.h"

#include <algorithm>

namespace terrace {
namespace {

class Borders {
 public:
  Borders(const Tokenizer& tokenizer, std::string_view text, std::vector<int32_t>* ids)
      : tokenizer_(tokenizer), text_(text) {
    exact_ = tokenizer.EncodeWithEnds(text, &ids_, &ends_);
    ids->insert(ids->end(), ids_.begin(), ids_.end());
  }

  uint64_t tokens() const { return ids_.size(); }

  // Tokens that end at `byte` or before.
  uint64_t Before(size_t byte) const {
    if (!exact_) return Common(byte).first;
    return std::upper_bound(ends_.begin(), ends_.end(), byte) - ends_.begin();
  }

  // Tokens that begin before `byte`.
  uint64_t Begun(size_t byte) const {
    if (byte == 0) return 0;
    if (byte >= text_.size()) return tokens();
    if (!exact_) {
      const auto [common, of_prefix] = Common(byte);
      return std::min<uint64_t>(tokens(), common + (common < of_prefix ? 1 : 0));
    }
    const uint64_t ended = std::lower_bound(ends_.begin(), ends_.end(), byte) - ends_.begin();
    return std::min(tokens(), ended + 1);
  }

 private:
  // Of the tokens of what stands before `byte`: those that the whole begins with, and all.
  std::pair<uint64_t, uint64_t> Common(size_t byte) const {
    if (byte == 0) return {0, 0};
    std::vector<int32_t> prefix;
    tokenizer_.Encode(text_.substr(0, byte), &prefix);
    const auto common = std::mismatch(prefix.begin(), prefix.end(), ids_.begin(), ids_.end());
    return {common.first - prefix.begin(), prefix.size()};
  }

  const Tokenizer& tokenizer_;
  const std::string_view text_;
  std::vector<int32_t> ids_;
  std::vector<size_t> ends_;
  bool exact_ = false;
};

}  // namespace

std::vector<TokenSpan> EncodeCounted(const Tokenizer& tokenizer, std::string_view text,
                                     const std::vector<TextSpan>& counted,
                                     std::vector<int32_t>* ids) {
  const Borders borders(tokenizer, text, ids);
  std::vector<TokenSpan> uncounted;
  uint64_t told = 0;  // up to here tokens count, or are in the list
  for (const TextSpan& span : counted) {
    const uint64_t begin = borders.Before(span.begin), end = borders.Begun(span.end);
    if (begin >= end) continue;
    if (begin > told) uncounted.push_back({told, begin});
    told = std::max(told, end);
  }
  if (told < borders.tokens()) uncounted.push_back({told, borders.tokens()});
  return uncounted;
}

}  // namespace terrace
