// Patterns of a tokenizer.json, which are written for Oniguruma, in RE2's words. What means
// something else there, or nothing, is refused.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::tokenizer_json {

// The parts of `pattern` between the bars that stand in no group and no class.
std::vector<std::string> TopLevelAlternatives(std::string_view pattern);

// INVALID_ARGUMENT names the construct that cannot be done. What neither knows, RE2 refuses.
absl::StatusOr<std::string> ToRe2(std::string_view pattern);

}  // namespace terrace::tokenizer_json
