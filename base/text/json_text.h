// JSON from outside, looked at before a library reads it: how deep it is nested, because writing it
// recurses, and which keys stand twice, because a library takes one of them without a word.
//
// Pure. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace terrace {

// Deeper than any file that means something.
inline constexpr int kJsonDepthMax = 64;

// INVALID_ARGUMENT with line and column for what is no JSON, or nested deeper than kJsonDepthMax.
// Keys that an object has twice, "rope_scaling.factor", are appended to `repeated`, where it is not
// null, but not too many.
absl::Status CheckJson(std::string_view text, std::vector<std::string>* repeated = nullptr);

}  // namespace terrace
