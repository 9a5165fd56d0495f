// SPDX-License-Identifier: Apache-2.0
#include "worker/data/unicode/character_class.h"

#include <algorithm>
#include <iterator>

#include "worker/data/unicode/code_points.h"

namespace terrace {
namespace {

struct LowercaseRow {
  uint32_t code;
  uint32_t first;
  uint32_t second;  // 0: none
};
struct CodeRange {
  uint32_t first;
  uint32_t last;
};
#include "worker/data/unicode/character_table.inc"

template <size_t kSize>
bool Holds(const CodeRange (&ranges)[kSize], uint32_t code) {
  const auto* range = std::upper_bound(std::begin(ranges), std::end(ranges), code,
                                       [](uint32_t c, const CodeRange& r) { return c < r.first; });
  return range != std::begin(ranges) && code <= std::prev(range)->last;
}

}  // namespace

std::string Lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const uint32_t code = NextCode(text, &i);
    const auto* found =
        std::lower_bound(std::begin(kLowercase), std::end(kLowercase), code,
                         [](const LowercaseRow& l, uint32_t c) { return l.code < c; });
    if (found == std::end(kLowercase) || found->code != code) {
      AppendCode(code, &out);
      continue;
    }
    AppendCode(found->first, &out);
    if (found->second != 0) AppendCode(found->second, &out);
  }
  return out;
}

bool IsMark(uint32_t code) { return Holds(kMarks, code); }
bool IsPunctuation(uint32_t code) { return Holds(kPunctuation, code); }
bool ExtendsCluster(uint32_t code) { return Holds(kExtends, code); }
bool IsClusterControl(uint32_t code) { return Holds(kClusterControls, code); }
bool IsNumeric(uint32_t code) { return Holds(kNumeric, code); }
bool IsWordCharacter(uint32_t code) { return Holds(kWord, code); }

}  // namespace terrace
