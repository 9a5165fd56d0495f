// SPDX-License-Identifier: Apache-2.0
#include "base/text/terminal_text.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_replace.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kCleanBytesMax = size_t{1} << 30;  // more than a piece

// Bytes at the end that begin a character of UTF-8 and do not end it.
size_t BegunCharacter(std::string_view text) {
  for (size_t bytes = 1; bytes <= std::min<size_t>(3, text.size()); ++bytes) {
    const auto byte = static_cast<unsigned char>(text[text.size() - bytes]);
    if (byte < 0x80) return 0;
    if (byte < 0xc0) continue;  // within a character
    const size_t length = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    return length > bytes ? bytes : 0;
  }
  return 0;
}

}  // namespace

std::string TerminalText::Next(std::string_view piece) {
  std::string whole = rest_ + absl::StrReplaceAll(Absl(piece), {{"\r\n", "\n"}});
  const size_t complete = whole.size() - BegunCharacter(whole);
  rest_ = whole.substr(complete);
  whole.resize(complete);
  return CleanText(whole, kCleanBytesMax);
}

}  // namespace terrace
