// SPDX-License-Identifier: Apache-2.0
#include "base/text/wrap.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/strings.h"

namespace terrace {

std::string Wrapped(std::string_view text, size_t columns, size_t indent) {
  std::string out;
  size_t column = indent;
  for (const absl::string_view line : absl::StrSplit(Absl(text), '\n')) {
    if (!out.empty()) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    }
    bool first = true;
    for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      if (!first && column + 1 + word.size() > columns) {
        absl::StrAppend(&out, "\n", std::string(indent, ' '));
        column = indent;
        first = true;
      }
      absl::StrAppend(&out, first ? "" : " ", word);
      column += word.size() + (first ? 0 : 1);
      first = false;
    }
  }
  return out;
}

}  // namespace terrace
