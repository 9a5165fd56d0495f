// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentencepiece_normalizer.h"

#include <cstring>

#include "absl/strings/match.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr std::string_view kReplacement = "\ufffd";  // for a byte that is not UTF-8

// Fields of a unit of the double array.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t Label(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

}  // namespace

absl::StatusOr<SentencePieceNormalizer> SentencePieceNormalizer::Create(
    const SentencePieceModel& model, const ByteTrie* symbols) {
  SentencePieceNormalizer normalizer;
  normalizer.symbols_ = symbols;
  normalizer.space_as_suffix_ = model.space_as_suffix;
  normalizer.add_dummy_prefix_ = model.add_dummy_prefix;
  normalizer.remove_extra_spaces_ = model.remove_extra_spaces;
  normalizer.escape_spaces_ = model.escape_spaces;
  const std::string_view map = model.character_map;
  if (map.empty()) return normalizer;
  uint32_t trie_bytes = 0;
  if (map.size() >= sizeof(trie_bytes)) std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  if (map.size() < sizeof(trie_bytes) || trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 ||
      trie_bytes >= map.size() - sizeof(trie_bytes) || map.back() != '\0') {
    return absl::InvalidArgumentError("its character map is damaged");
  }
  normalizer.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(normalizer.units_.data(), map.data() + sizeof(trie_bytes), trie_bytes);
  normalizer.replacements_ = std::string(map.substr(sizeof(trie_bytes) + trie_bytes));
  return normalizer;
}

// The longest rule that `text` begins with.
SentencePieceNormalizer::Prefix SentencePieceNormalizer::LookUp(std::string_view text) const {
  Prefix longest = {{}, 0};
  if (units_.empty()) return longest;
  uint32_t node = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = text[i];
    node ^= c;
    if (node >= units_.size() || Label(units_[node]) != c) break;
    const uint32_t unit = units_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size() || Value(units_[node]) >= replacements_.size()) break;
    longest = {replacements_.c_str() + Value(units_[node]), i + 1};
  }
  return longest;
}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::NormalizePrefix(
    std::string_view text) const {
  if (const size_t length = symbols_->LongestPrefix(text)) return {text.substr(0, length), length};
  if (const Prefix rule = LookUp(text); rule.consumed > 0) return rule;
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
