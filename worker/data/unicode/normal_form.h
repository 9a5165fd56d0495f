// Unicode normalization forms of UTF-8 (Unicode Standard Annex 15), as the tokenizers library has
// them: of Unicode 9.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace terrace {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Whether Normalize would return `text` unchanged for sure: a quick test that nearly all text
// passes in form C, and ASCII in the others.
bool IsSurelyNormal(std::string_view text, NormalForm form);

// Bytes that are not UTF-8 stay as they are.
std::string Normalize(std::string_view text, NormalForm form);

}  // namespace terrace
