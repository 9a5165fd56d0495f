// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace terrace {
namespace {

// Returns the code point of `character`, which is one valid UTF-8 sequence.
uint32_t CodePoint(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead;
  uint32_t code = lead & (0xffu >> (character.size() + 1));
  for (char c : character.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3fu);
  return code;
}

// Characters that change how the text around them is shown: separators of lines and paragraphs,
// embeddings and isolates of writing direction (Unicode Standard Annex 9), the byte order mark.
bool ChangesDisplay(uint32_t code) {
  return code == 0x2028 || code == 0x2029 || code == 0x200e || code == 0x200f || code == 0x061c ||
         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

bool IsControl(uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

void AppendHex(std::string_view bytes, std::string* out) {
  for (char c : bytes) absl::StrAppendFormat(out, "\\x%02x", static_cast<unsigned char>(c));
}

// Appends what is shown for the character or stray byte that `text` begins with; the result is its
// bytes in `text`.
size_t AppendClean(std::string_view text, bool keep_lines, std::string* out) {
  const size_t length = Utf8Length(text);
  if (length == 0) {
    AppendHex(text.substr(0, 1), out);
    return 1;
  }
  const std::string_view character = text.substr(0, length);
  const uint32_t code = CodePoint(character);
  if (code == '\t' || (code == '\n' && keep_lines)) {
    out->append(character);
  } else if (code == '\n') {
    out->append("\\n");
  } else if (IsControl(code)) {
    AppendHex(character, out);
  } else if (ChangesDisplay(code)) {
    absl::StrAppendFormat(out, "\\u%04x", code);
  } else {
    out->append(character);
  }
  return length;
}

std::string Clean(std::string_view text, size_t bytes_max, bool keep_lines) {
  std::string clean;
  for (size_t i = 0; i < text.size();) {
    const size_t before = clean.size();
    const size_t taken = AppendClean(text.substr(i), keep_lines, &clean);
    if (clean.size() > bytes_max) {
      clean.resize(before);
      absl::StrAppend(&clean, "... (", text.size() - i, " more bytes)");
      break;
    }
    i += taken;
  }
  return clean;
}

}  // namespace

size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](size_t from, size_t length) {
    if (text.size() < length) return false;
    for (size_t i = from; i < length; ++i) {
      if ((byte(i) & 0xc0) != 0x80) return false;
    }
    return true;
  };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  if (lead < 0xe0) return continues(1, 2) ? 2 : 0;
  if (lead < 0xf0) {
    if (!continues(1, 3)) return 0;
    const bool overlong = lead == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
    return overlong || surrogate ? 0 : 3;
  }
  if (!continues(1, 4)) return 0;
  const bool overlong = lead == 0xf0 && byte(1) < 0x90;
  const bool beyond = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || beyond ? 0 : 4;
}

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return text.size();
}

absl::Status CheckUtf8(std::string_view what, std::string_view text) {
  const size_t bad = FindInvalidUtf8(text);
  if (bad == text.size()) return absl::OkStatus();
  const std::string_view before = text.substr(0, bad);
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return absl::InvalidArgumentError(absl::StrCat(
      "line ", std::count(before.begin(), before.end(), '\n') + 1, ", column ",
      bad - line_begin + 1, ": ", CleanLine(what), ": got the byte ",
      CleanLine(text.substr(bad, 1)), ", must be UTF-8; try iconv -f latin1 -t utf-8"));
}

std::string CleanText(std::string_view text, size_t bytes_max) {
  return Clean(text, bytes_max, /*keep_lines=*/true);
}

std::string CleanLine(std::string_view text, size_t bytes_max) {
  return Clean(text, bytes_max, /*keep_lines=*/false);
}

}  // namespace terrace
