// SPDX-License-Identifier: Apache-2.0
#include "worker/data/character_map.h"

#include <cstring>

namespace terrace {
namespace {

// Fields of a unit of the double array.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t Label(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

}  // namespace

absl::StatusOr<CharacterMap> CharacterMap::Parse(std::string_view map) {
  CharacterMap parsed;
  if (map.empty()) return parsed;
  uint32_t trie_bytes = 0;
  if (map.size() >= sizeof(trie_bytes)) std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  if (map.size() < sizeof(trie_bytes) || trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 ||
      trie_bytes >= map.size() - sizeof(trie_bytes) || map.back() != '\0') {
    return absl::InvalidArgumentError("its character map is damaged");
  }
  parsed.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(parsed.units_.data(), map.data() + sizeof(trie_bytes), trie_bytes);
  parsed.replacements_ = std::string(map.substr(sizeof(trie_bytes) + trie_bytes));
  return parsed;
}

CharacterMap::Rule CharacterMap::Find(std::string_view text, bool longest) const {
  Rule best;
  if (units_.empty()) return best;
  uint32_t node = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = text[i];
    node ^= c;
    if (node >= units_.size() || Label(units_[node]) != c) break;
    const uint32_t unit = units_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size() || Value(units_[node]) >= replacements_.size()) break;
    best = {replacements_.c_str() + Value(units_[node]), i + 1};
    if (!longest) break;
  }
  return best;
}

}  // namespace terrace
