// How numbers are written for people, in tables, pictures and messages alike.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

// "61.2 GiB", "12.0 KiB", "17 B".
std::string FormatBytes(int64_t bytes);
std::string Grouped(int64_t number);                             // "124,439,808"
std::string SecondsText(double seconds);                         // "12.3 ms", "2.58 s", "3.0 h"
std::string PercentText(double ratio);                           // 0.55 -> "55.0 %"
std::string RateText(double per_second, std::string_view unit);  // "989.40 TFLOP/s"

}  // namespace terrace
