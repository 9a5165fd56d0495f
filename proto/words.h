// How numbers are written for people, in tables, pictures and messages alike. Bytes are written by
// FormatBytes (program_text.h).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

std::string Grouped(int64_t number);                             // "124,439,808"
std::string SecondsText(double seconds);                         // "12.3 ms", "2.58 s", "3.0 h"
std::string PercentText(double ratio);                           // 0.55 -> "55.0 %"
std::string RateText(double per_second, std::string_view unit);  // "989.40 TFLOP/s"

// Breaks the text between words so that no line is longer than `columns`, but for words that are.
// All lines count as if they began with `indent` spaces; those after the first do. The text's own
// breaks stay.
std::string Wrapped(std::string_view text, size_t columns, size_t indent);

}  // namespace terrace
