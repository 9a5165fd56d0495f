// SPDX-License-Identifier: Apache-2.0
#include "worker/data/characters.h"

#include <algorithm>
#include <string>

#include "base/utf8.h"
#include "worker/data/unicode/code_points.h"

namespace terrace {
size_t LastCharacter(std::string_view text) {
  for (size_t bytes = 1; bytes <= std::min<size_t>(text.size(), 4); ++bytes) {
    if (Utf8Length(text.substr(text.size() - bytes)) == bytes) return text.size() - bytes;
  }
  return text.size() - 1;
}

size_t CharacterBytes(std::string_view text) { return std::max<size_t>(Utf8Length(text), 1); }

size_t SpaceLength(std::string_view text, size_t position) {
  const auto at = [&](size_t i) {
    return position + i < text.size() ? static_cast<unsigned char>(text[position + i]) : 0;
  };
  const unsigned char c = at(0);
  if (c == ' ' || (c >= '\t' && c <= '\r')) return 1;
  if (c == 0xc2) return at(1) == 0x85 || at(1) == 0xa0 ? 2 : 0;
  if (c == 0xe1) return at(1) == 0x9a && at(2) == 0x80 ? 3 : 0;
  if (c == 0xe3) return at(1) == 0x80 && at(2) == 0x80 ? 3 : 0;
  if (c != 0xe2) return 0;
  if (at(1) == 0x81) return at(2) == 0x9f ? 3 : 0;
  if (at(1) != 0x80) return 0;
  const bool in_general_punctuation =
      (at(2) >= 0x80 && at(2) <= 0x8a) || at(2) == 0xa8 || at(2) == 0xa9 || at(2) == 0xaf;
  return in_general_punctuation ? 3 : 0;
}

size_t LeadingSpaceBytes(std::string_view text) {
  size_t end = 0;
  while (const size_t length = SpaceLength(text, end)) end += length;
  return end;
}

size_t TrailingSpaceBytes(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    const size_t last = LastCharacter(text.substr(0, begin));
    if (SpaceLength(text.substr(0, begin), last) == 0) break;
    begin = last;
  }
  return text.size() - begin;
}

bool IsSpace(uint32_t code) {
  std::string text;
  AppendCode(code, &text);
  return SpaceLength(text, 0) != 0;
}

}  // namespace terrace
