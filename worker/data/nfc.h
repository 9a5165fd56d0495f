// Unicode normalization form C of UTF-8 (Unicode Standard Annex 15), which Qwen's tokenizers ask
// for.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace terrace {

// Whether NormalizeNfc would return `text` unchanged for sure: a quick test that nearly all text
// passes.
bool IsSurelyNfc(std::string_view text);

// Bytes that are not UTF-8 stay as they are.
std::string NormalizeNfc(std::string_view text);

}  // namespace terrace
