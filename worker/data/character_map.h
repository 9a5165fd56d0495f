// The character map of SentencePiece ("precompiled_charsmap"): texts and what stands for them, in a
// double array (Darts-clone).
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

class CharacterMap {
 public:
  // Empty: no rules. INVALID_ARGUMENT when it is damaged.
  static absl::StatusOr<CharacterMap> Parse(std::string_view map);

  struct Rule {
    std::string_view replacement;
    size_t consumed = 0;  // 0: no rule
  };
  // The longest and the shortest rule that `text` begins with.
  Rule Longest(std::string_view text) const { return Find(text, /*longest=*/true); }
  Rule Shortest(std::string_view text) const { return Find(text, /*longest=*/false); }

 private:
  Rule Find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a zero byte
};

}  // namespace terrace
