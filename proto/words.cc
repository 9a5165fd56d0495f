// SPDX-License-Identifier: Apache-2.0
#include "proto/words.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/strings.h"

namespace terrace {

std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  const int first = number < 0 ? 1 : 0;
  for (int i = static_cast<int>(digits.size()) - 3; i > first; i -= 3) digits.insert(i, 1, ',');
  return digits;
}

std::string SecondsText(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 120) return absl::StrFormat("%.3g s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.1f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f days", seconds / 86400);
}

std::string PercentText(double ratio) { return absl::StrFormat("%.1f %%", 100 * ratio); }

std::string RateText(double per_second, std::string_view unit) {
  if (per_second >= 1e12) return absl::StrFormat("%.2f T%s/s", per_second / 1e12, Absl(unit));
  return absl::StrFormat("%.1f G%s/s", per_second / 1e9, Absl(unit));
}

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
