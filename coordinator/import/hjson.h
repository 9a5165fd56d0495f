// Hjson (hjson.github.io), the superset of JSON that DeepSpeed reads: comments (#, //, /* */),
// commas that trail or are left out, keys and strings without quotes, text of several lines in ''',
// an outermost object without braces.
//
// In: text. Out: the same value as JSON. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace terrace {

// INVALID_ARGUMENT with line and column; also for a key that an object has twice.
absl::StatusOr<nlohmann::json> ParseHjson(std::string_view text);

}  // namespace terrace
