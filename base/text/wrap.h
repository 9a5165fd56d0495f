// Text broken into lines for a terminal. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace terrace {

// Breaks the text between words so that no line is longer than `columns`, but for words that are.
// All lines count as if they began with `indent` spaces; those after the first do. The text's own
// breaks stay.
std::string Wrapped(std::string_view text, size_t columns, size_t indent);

}  // namespace terrace
