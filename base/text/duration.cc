// SPDX-License-Identifier: Apache-2.0
#include "base/text/duration.h"

#include <cmath>
#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {
namespace {

struct Unit {
  char letter;
  int64_t seconds;
};
constexpr Unit kUnits[] = {{'d', 86'400}, {'h', 3'600}, {'m', 60}, {'s', 1}};
constexpr double kSecondsMax = 1e15;

}  // namespace

std::optional<int64_t> ParseSpan(std::string_view text) {
  double seconds = 0;
  const Unit* unit = std::begin(kUnits);  // the largest that may come next
  if (text.empty()) return std::nullopt;
  while (!text.empty()) {
    const size_t digits = text.find_first_not_of("0123456789.");
    double number = 0;
    if (digits == 0 || digits == std::string_view::npos ||
        !absl::SimpleAtod(Absl(text.substr(0, digits)), &number)) {
      return std::nullopt;
    }
    while (unit != std::end(kUnits) && unit->letter != text[digits]) ++unit;
    if (unit == std::end(kUnits)) return std::nullopt;
    seconds += number * static_cast<double>(unit->seconds);
    ++unit;
    text.remove_prefix(digits + 1);
  }
  if (seconds > kSecondsMax) return std::nullopt;
  return static_cast<int64_t>(std::floor(seconds));
}

std::string SpanText(int64_t seconds) {
  std::string text;
  for (const Unit& unit : kUnits) {
    const int64_t count = seconds / unit.seconds;
    seconds %= unit.seconds;
    if (count > 0) absl::StrAppend(&text, count, std::string(1, unit.letter));
  }
  return text.empty() ? "0s" : text;
}

}  // namespace terrace
