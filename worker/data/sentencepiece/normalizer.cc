// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentencepiece/normalizer.h"

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr std::string_view kReplacement = "\ufffd";  // for a byte that is not UTF-8

}  // namespace

absl::StatusOr<SentencePieceNormalizer> SentencePieceNormalizer::Create(
    const SentencePieceModel::Normalizer& rules, bool space_as_suffix, const ByteTrie* symbols) {
  SentencePieceNormalizer normalizer;
  normalizer.symbols_ = symbols;
  normalizer.space_as_suffix_ = space_as_suffix;
  normalizer.add_dummy_prefix_ = rules.add_dummy_prefix;
  normalizer.remove_extra_spaces_ = rules.remove_extra_spaces;
  normalizer.escape_spaces_ = rules.escape_spaces;
  ASSIGN_OR_RETURN(normalizer.map_, CharacterMap::Parse(rules.character_map));
  return normalizer;
}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::NormalizePrefix(
    std::string_view text) const {
  if (const size_t length = symbols_->LongestPrefix(text)) return {text.substr(0, length), length};
  if (const CharacterMap::Rule rule = map_.Longest(text); rule.consumed > 0) {
    return {rule.replacement, rule.consumed};
  }
  const size_t length = Utf8Length(text);
  if (length == 0) return {kReplacement, 1};
  return {text.substr(0, length), length};
}

void SentencePieceNormalizer::AppendSpace(std::string* out) const {
  out->append(escape_spaces_ ? kSpaceSymbol : std::string_view(" "));
}

std::string SentencePieceNormalizer::Normalize(std::string_view text) const {
  std::string out;
  while (remove_extra_spaces_ && !text.empty()) {
    const Prefix prefix = NormalizePrefix(text);
    if (prefix.normalized != " ") break;
    text.remove_prefix(prefix.consumed);
  }
  if (text.empty()) return out;
  out.reserve(text.size() * 3);
  if (add_dummy_prefix_ && !space_as_suffix_) AppendSpace(&out);
  bool after_space = remove_extra_spaces_;
  while (!text.empty()) {
    const Prefix prefix = NormalizePrefix(text);
    std::string_view normalized = prefix.normalized;
    while (after_space && normalized.starts_with(' ')) normalized.remove_prefix(1);
    for (const char c : normalized) {
      if (c == ' ') {
        AppendSpace(&out);
      } else {
        out.push_back(c);
      }
    }
    if (!normalized.empty()) after_space = remove_extra_spaces_ && normalized.ends_with(' ');
    text.remove_prefix(prefix.consumed);
  }
  const std::string_view space = escape_spaces_ ? kSpaceSymbol : std::string_view(" ");
  while (remove_extra_spaces_ && out.ends_with(space)) out.resize(out.size() - space.size());
  if (add_dummy_prefix_ && space_as_suffix_) AppendSpace(&out);
  return out;
}

}  // namespace terrace
