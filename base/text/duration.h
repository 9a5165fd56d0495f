// Durations as people write them in specs and options: "2h30m".
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace {

// Numbers with the units d, h, m and s, each unit at most once and the larger ones first: "1d12h",
// "1.5h", "90s". Whole seconds, rounded down; nothing where the text is anything else, also for a
// bare number, whose unit one reader takes for minutes and another for seconds.
std::optional<int64_t> ParseSpan(std::string_view text);

// The same the other way: 9000 is "2h30m", 0 is "0s". REQUIRES: seconds >= 0.
std::string SpanText(int64_t seconds);

}  // namespace terrace
